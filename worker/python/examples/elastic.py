"""Trains the digits of digits.py with workers that come and go: 2, 4, 3, 5, and 4 of them.

    python3 elastic.py

The job is elastic: workers join the run, one leaves after a step at SIGTERM, and one is killed. Each draws its
own examples of a step; the servers have the parameters and AdamW, and divide each step's gradients by
the number of its workers. The last lines have the workers of the steps, and the accuracy on pictures
that were held out.
"""
import argparse
import multiprocessing
import os
import signal
import sys

import torch

import verbena
import verbena.torch
from digits import read_digits

BATCH = 32  # of each worker
STEPS = 200  # at least, with each number of workers
MOST_WORKERS = 5


def train(cluster, number, progress):
    """number: of this process, from 0; the first two begin the run. It leaves after a step at SIGTERM."""
    torch.set_num_threads(1)
    pictures, labels, held_out, truth = read_digits()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    with verbena.StopSignals() as stop, \
            verbena.connect(cluster, job="elastic", expected_workers=2, max_workers=MOST_WORKERS) as client:
        optimizer = verbena.torch.DistributedOptimizer(
            model.named_parameters(), torch.optim.AdamW(model.parameters(), lr=0.003),
            client=client, name="digits")
        table = client.open_table(next(iter(optimizer.layout())))
        if number > 1:
            print(f"process {number} begins with step {optimizer.steps}", flush=True)
        sizes = []
        while not stop.requested:
            step = optimizer.steps
            generator = torch.Generator().manual_seed(step * MOST_WORKERS + number)
            mine = torch.randint(len(labels), (BATCH,), generator=generator)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(pictures[mine]), labels[mine]).backward()
            optimizer.step()
            progress[number] = step + 1
            workers = sum(member["first_step"] <= step for member in client.members(table))
            if number == 0 and workers != (sizes[-1] if sizes else 0):
                sizes.append(workers)
        print(f"process {number} leaves after {optimizer.steps} steps of the run", flush=True)
        if number == 0:
            with torch.no_grad():
                accuracy = (model(held_out).argmax(1) == truth).float().mean().item()
            print("workers of the steps: " + ", ".join(map(str, sizes)))
            print(f"accuracy {accuracy:.4f} on {len(truth)} held-out digits", flush=True)
    sys.exit(stop.exit_status)


class Run:
    """The processes of a run."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.spawn = multiprocessing.get_context("spawn")
        self.progress = self.spawn.Array("q", 2 * MOST_WORKERS)  # by process: steps that it has made
        self.processes = []
        self.start(2)

    def start(self, count):
        """Waits until the processes have made a step of the run."""
        for _ in range(count):
            number = len(self.processes)
            self.processes.append(self.spawn.Process(
                target=train, args=(self.cluster, number, self.progress)))
            self.processes[number].start()
        self.wait(lambda: all(self.progress[len(self.processes) - 1 - i] > 0 for i in range(count)))

    def wait(self, condition):
        while not condition():
            self.processes[0].join(0.02)
            if not self.processes[0].is_alive():
                raise SystemExit("the first worker ended too early")

    def go_on(self):
        until = self.progress[0] + STEPS
        self.wait(lambda: self.progress[0] >= until)

    def end(self, *numbers):
        """These processes leave the run."""
        for number in numbers:
            self.processes[number].terminate()  # SIGTERM
        for number in numbers:
            self.processes[number].join()


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with verbena.local_cluster(servers=2, options=("--lease-ms", "2000")) as cluster:
        run = Run(cluster.address)
        run.go_on()
        run.start(2)
        run.go_on()
        run.end(2)
        run.go_on()
        run.start(2)
        run.go_on()
        os.kill(run.processes[3].pid, signal.SIGKILL)
        run.processes[3].join()
        print("process 3 is killed", flush=True)
        run.go_on()
        run.end(5, 4, 1)
        run.end(0)
    expected = [-signal.SIGKILL if number == 3 else 128 + signal.SIGTERM for number in range(6)]
    if [process.exitcode for process in run.processes] != expected:
        raise SystemExit("a worker failed")


if __name__ == "__main__":
    main()
