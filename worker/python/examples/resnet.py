"""Trains ResNet-18 with DistributedOptimizer and, in turn, with DistributedDataParallel over gloo.

    python3 resnet.py                       a cluster of its own, 2 workers with one thread each
    python3 resnet.py --transport ofi       without shared memory
    python3 resnet.py --equal-priorities    the servers' parameters in the order of the gradients

Both begin with the same parameters and get the same generated pictures. After two steps their
parameters are compared: rounding differs, and training amplifies that from step to step. Then
blocks of steps alternate. For each step of rank 0 it prints the time, the communication that
training hides and that for which it waits, and the bytes. The last lines have the medians and their
ratio.
"""
import argparse
import copy
import multiprocessing
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torchvision

import verbena
import verbena.torch

CLASSES = 10
RATE, MOMENTUM = 0.002, 0.9
COMPARED = 2  # steps: from the second on the momentum counts


def make_batches(options, rank):
    """Pictures of classes, each a pattern with noise: this worker's share of each step's batch."""
    patterns = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    patterns = torch.nn.functional.interpolate(patterns, size=options.pixels)
    generator = torch.Generator().manual_seed(2 + rank)
    batches = []
    for _ in range(options.steps):
        labels = torch.randint(0, CLASSES, (options.batch,), generator=generator)
        noise = torch.randn(options.batch, 3, options.pixels, options.pixels, generator=generator)
        batches.append((patterns[labels] + noise, labels))
    return batches


class Run:
    """Steps of one of the two ways to train."""

    set_to_none = False  # by zero_grad(): each way has the faster one

    def __init__(self, name, model, optimizer):
        self.name = name
        self.model = model
        self.optimizer = optimizer
        self.milliseconds = []

    def snapshot(self):
        """The communication so far."""

    def report(self, before, now):
        """The communication between two snapshots, as text."""
        return ""

    def finish(self):
        """Waits for the parameters of the last step."""

    def block(self, batches, show):
        """A step for each batch; the last one ends with its parameters in the model."""
        dist.barrier()
        losses, marks = [], [(time.perf_counter(), self.snapshot())]
        for number, (pictures, labels) in enumerate(batches):
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
            loss = torch.nn.functional.cross_entropy(self.model(pictures), labels)
            loss.backward()
            self.optimizer.step()
            if number == len(batches) - 1:
                self.finish()
            losses.append(loss.item())
            marks.append((time.perf_counter(), self.snapshot()))
        for loss, (start, before), (end, now) in zip(losses, marks, marks[1:]):
            milliseconds = (end - start) * 1e3
            self.milliseconds.append(milliseconds)
            if show:
                print(f"{self.name}: step {milliseconds:.1f} ms, loss {loss:.3f}"
                      f"{self.report(before, now)}", flush=True)


class VerbenaRun(Run):
    """DistributedOptimizer."""

    set_to_none = True  # saves a pass that clears gradients, and one that adds to zeros

    def __init__(self, model, client, options):
        super().__init__("verbena", model, verbena.torch.DistributedOptimizer(
            model.named_parameters(),
            torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM), client=client,
            name="resnet", model=model, bucket_bytes=options.bucket_bytes))
        self.client = client
        self.exposed = []
        if options.equal_priorities:
            for name in self.optimizer.layout():
                client.set_priority(client.open_table(name), 0)

    def snapshot(self):
        return self.optimizer.communication, self.client.statistics()

    def report(self, before, now):
        (times, counters), (now, count) = before, now
        hidden, exposed = now.hidden - times.hidden, now.exposed - times.exposed
        self.exposed.append(exposed * 1e3)
        pushed, pulled = (count[key] - counters[key] for key in ("bytes_pushed", "bytes_pulled"))
        return (f"; communication: hidden {hidden * 1e3:.1f} ms, exposed {exposed * 1e3:.1f} ms, "
                f"copies {(now.copies - times.copies) * 1e3:.1f} ms; "
                f"pushed {pushed} bytes, pulled {pulled} bytes")

    def finish(self):
        self.optimizer.synchronize()


def flat(model):
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def compare(model, twin, first, tolerance):
    distance = ((flat(model) - flat(twin)).norm() / (flat(twin) - first).norm()).item()
    print(f"distance of the models after {COMPARED} steps: {distance:.1e} of their movement",
          flush=True)
    if not distance < tolerance:
        raise SystemExit(f"the models differ by {distance:.1e} of their movement; allowed: "
                         f"{tolerance}")


def work(cluster, rendezvous, options, rank):
    """One of the workers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank,
                            world_size=options.workers)
    batches = make_batches(options, rank)
    net = torchvision.models.resnet18(num_classes=CLASSES)
    first, twin = flat(net), copy.deepcopy(net)
    with verbena.connect(cluster, job="resnet", rank=rank, expected_workers=options.workers,
                         transport=options.transport) as client:
        ours = VerbenaRun(net, client, options)
        # As here, statistics of normalization layers are each worker's own. Gradients are views of
        # the buckets, which are not copied.
        ddp = torch.nn.parallel.DistributedDataParallel(
            twin, broadcast_buffers=False, gradient_as_bucket_view=True)
        theirs = Run("ddp", ddp,
                     torch.optim.SGD(ddp.parameters(), lr=RATE, momentum=MOMENTUM))
        for run in (ours, theirs):
            run.block(batches[:COMPARED], False)
            run.milliseconds.clear()
        if rank == 0:
            compare(net, twin, first, options.tolerance)
        for _ in range(options.blocks):
            for run in (ours, theirs):
                run.block(batches, rank == 0)
    dist.destroy_process_group()
    if rank > 0:
        return
    step, other = statistics.median(ours.milliseconds), statistics.median(theirs.milliseconds)
    print(f"{options.workers} workers, {len(ours.milliseconds)} steps each: verbena {step:.1f} ms, "
          f"ddp {other:.1f} ms, ratio {step / other:.3f} (medians)")
    share = 100 * sum(ours.exposed) / sum(ours.milliseconds)
    print(f"exposed communication: median {statistics.median(ours.exposed):.1f} ms, "
          f"{share:.1f} % of all steps")


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; allowed: 1 and more")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=positive, default=2, help="number of workers (2)")
    parser.add_argument("--servers", type=positive, default=1, help="number of servers (1)")
    parser.add_argument("--batch", type=positive, default=8, help="pictures of a worker in a step (8)")
    parser.add_argument("--pixels", type=positive, default=64, help="width and height of a picture (64)")
    parser.add_argument("--steps", type=positive, default=8, help="steps of a block (8)")
    parser.add_argument("--blocks", type=positive, default=6, help="blocks of each way (6)")
    parser.add_argument("--bucket-bytes", type=int, default=4 << 20, help="size of a table (4 MiB)")
    parser.add_argument("--transport", help="shm, verbs or ofi; default: the best one")
    parser.add_argument("--equal-priorities", action="store_true",
                        help="for comparison: no table's requests go before those of others")
    parser.add_argument("--tolerance", type=float, default=0.01,
                        help="largest distance of the models, as a share of their movement (0.01)")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory, \
            verbena.local_cluster(servers=options.servers) as cluster:
        rendezvous = os.path.join(directory, "rendezvous")
        workers = [spawn.Process(target=work, args=(cluster.address, rendezvous, options, rank))
                   for rank in range(options.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed")


if __name__ == "__main__":
    main()
