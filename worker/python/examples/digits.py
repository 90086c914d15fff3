"""Trains a classifier of scikit-learn's handwritten digits with several workers.

    python3 digits.py                                          a cluster of its own, 2 workers
    python3 digits.py --cluster HOST:PORT --workers 4 --rank 0     one of 4 workers of a cluster
    python3 digits.py --log run.jsonl && verbena-plot run.jsonl -o run.png

Each worker computes the gradients of its share of each batch; the servers have the parameters and
AdamW. The last line has the accuracy on pictures that were held out. SIGTERM or Ctrl-C ends a worker
after a step.
"""
import argparse
import contextlib
import multiprocessing

import torch
from sklearn.datasets import load_digits

import verbena
import verbena.torch

BATCH = 64
EPOCHS = 30


def read_digits():
    """Pictures in [0, 1] and digits, for training and held out."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    pictures = torch.from_numpy(digits.data / 16).float()[order]
    labels = torch.from_numpy(digits.target).long()[order]
    return pictures[:1440], labels[:1440], pictures[1440:], labels[1440:]


def train(cluster, workers, rank, path=None):
    torch.set_num_threads(1)
    pictures, labels, held_out, truth = read_digits()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    steps = EPOCHS * (len(labels) // BATCH)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(verbena.StopSignals())
        client = stack.enter_context(
            verbena.connect(cluster, job="digits", rank=rank, expected_workers=workers))
        log = None
        if path and rank == 0:
            log = stack.enter_context(
                verbena.RunLog(path, client, model="mlp", batch=BATCH, planned_steps=steps, shards=1))
        optimizer = verbena.torch.DistributedOptimizer(
            model.named_parameters(), torch.optim.AdamW(model.parameters(), lr=0.005),
            client=client, name="digits", log=log)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for epoch in range(EPOCHS):
            # The same order on all workers; each takes its share of a batch.
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
            for batch in order[:len(order) // BATCH * BATCH].split(BATCH):
                if stop.requested:
                    print(f"worker {rank} leaves after {optimizer.steps} steps", flush=True)
                    raise SystemExit(stop.exit_status)
                mine = batch[rank::workers]
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(pictures[mine]), labels[mine])
                loss.backward()
                if log:
                    log.add(loss, BATCH)
                optimizer.step()
                scheduler.step()
            if rank == 0 and epoch % 5 == 4:
                print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)
        if rank == 0:
            with torch.no_grad():
                accuracy = (model(held_out).argmax(1) == truth).float().mean().item()
            if log:
                log.validation(examples=len(truth), accuracy=accuracy)
            print(f"accuracy {accuracy:.4f} on {len(truth)} held-out digits, {workers} workers, "
                  f"{steps} steps", flush=True)


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; allowed: 1 and more")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", help="HOST:PORT of the coordinator; default: a cluster of its own")
    parser.add_argument("--workers", type=positive, default=2, help="number of workers (2)")
    parser.add_argument("--rank", type=int, help="with --cluster: which worker this is")
    parser.add_argument("--log", metavar="FILE", help="write the log of the run, for verbena-plot")
    options = parser.parse_args()
    if options.cluster:
        if options.rank is None:
            parser.error("--cluster needs --rank")
        return train(options.cluster, options.workers, options.rank, options.log)
    spawn = multiprocessing.get_context("spawn")
    with verbena.local_cluster(servers=2) as cluster:
        workers = [spawn.Process(target=train, args=(cluster.address, options.workers, rank, options.log))
                   for rank in range(options.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed")


if __name__ == "__main__":
    main()
