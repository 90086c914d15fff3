"""Trains a click model on Criteo's format: embedding bags on the servers beside a dense tower.

    python3 dlrm.py --data train.tsv --test test.tsv            a cluster of its own, 2 workers
    python3 dlrm.py --data train.tsv --test test.tsv --local    torch.nn alone, for comparison
    python3 dlrm.py ... --log run.jsonl && verbena-plot run.jsonl -o run.png

A line has a label (0 or 1), 13 integers and 26 categories, separated by tabs; fields may be empty. The
model follows DLRM (Naumov et al. 2019, arXiv:1906.00091): a network of the integers, an embedding of each
category, their scalar products, and a network of all of these. Rows are made when a category is first
seen, so the number of categories need not be known. The last line has the AUC on the test file.
"""
import argparse
import contextlib
import multiprocessing
import time
import zlib

import torch

import verbena
import verbena.torch

INTEGERS, CATEGORIES = 13, 26
KEYS = 1 << 40  # categories are hashed to keys below


def read_clicks(path):
    """Labels [n], log(1 + integers) [n, 13], keys of categories [n, 26]."""
    labels, numbers, keys = [], [], []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 1 + INTEGERS + CATEGORIES or fields[0] not in ("0", "1"):
                raise SystemExit(f"{path}:{number}: wanted: a label and {INTEGERS + CATEGORIES} fields, "
                                 "separated by tabs")
            labels.append(float(fields[0]))
            numbers.append([max(float(field or 0), 0.0) for field in fields[1:1 + INTEGERS]])
            keys.append([(zlib.crc32(f"{i}:{field}".encode()) << 8) + i  # the field is part of the key
                         for i, field in enumerate(fields[1 + INTEGERS:])])
    return torch.tensor(labels), torch.tensor(numbers).log1p(), torch.tensor(keys)


def layers(*widths):
    """Linear layers with ReLU between them."""
    modules = []
    for before, after in zip(widths, widths[1:]):
        modules += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


class Tower(torch.nn.Module):
    """The dense part: logits [n] of integers [n, 13] and embeddings [n, 26, dim]."""

    def __init__(self, dim):
        super().__init__()
        vectors = CATEGORIES + 1
        self.bottom = layers(INTEGERS, 64, dim)
        self.top = layers(vectors * (vectors - 1) // 2 + vectors * dim, 64, 1)
        self.pairs = torch.triu_indices(vectors, vectors, 1)

    def forward(self, numbers, embedded):
        vectors = torch.cat([self.bottom(numbers).unsqueeze(1), embedded], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([products, vectors.flatten(1)], 1)).squeeze(1)


def area_under_curve(scores, labels):
    """The probability that a click has a higher score than another line; ties count half."""
    _, place, count = scores.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    ranks = (last - (count - 1) / 2)[place]
    clicks = labels > 0.5
    n = int(clicks.sum())
    return (ranks[clicks].sum().item() - n * (n + 1) / 2) / (n * (len(labels) - n))


def embed(bags, keys, dim):
    """Each category is a bag of one: [n, 26, dim]."""
    return bags(keys.reshape(-1, 1)).view(len(keys), CATEGORIES, dim)


def fit(options, rank, tower, bags, optimizers, data, log=None):
    """Trains on this worker's share of each batch."""
    labels, numbers, keys = data
    steps = 0
    began = time.monotonic()
    for epoch in range(options.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order[:len(order) // options.batch * options.batch].split(options.batch):
            mine = batch[rank::options.workers]
            for optimizer in optimizers:
                optimizer.zero_grad()
            logits = tower(numbers[mine], embed(bags, keys[mine], options.dim))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[mine])
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            if log:
                log.step(loss, options.batch)
            steps += 1
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}, {steps / (time.monotonic() - began):.0f} steps/s",
                  flush=True)


def report(options, tower, bags, keys_of=lambda keys: keys, log=None):
    labels, numbers, keys = read_clicks(options.test)
    with torch.no_grad():
        logits = torch.cat([tower(n, embed(bags, keys_of(k), options.dim))
                            for n, k in zip(numbers.split(1024), keys.split(1024))])
    auc = area_under_curve(logits, labels)
    if log:
        log.validation(examples=len(labels), auc=auc)
    print(f"AUC {auc:.4f} on {len(labels)} lines", flush=True)


def train(cluster, options, rank):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tower = Tower(options.dim)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(
            verbena.connect(cluster, job=options.job, rank=rank, expected_workers=options.workers))
        log = None
        if options.log and rank == 0:
            log = stack.enter_context(verbena.RunLog(options.log, client, model="dlrm", optimizer="adam, adagrad",
                                                     consistency="sync", batch=options.batch, shards=1))
        bags = verbena.torch.EmbeddingBag(
            KEYS, options.dim, mode="sum", client=client, name=f"{options.job}/categories", optimizer="adagrad",
            rate=options.rate, init=("normal", 0.0, 0.01))
        optimizers = [
            verbena.torch.DistributedOptimizer(
                tower.named_parameters(), torch.optim.Adam(tower.parameters(), lr=0.001), client=client,
                name=f"{options.job}/tower"),
            verbena.torch.EmbeddingOptimizer([bags])]
        fit(options, rank, tower, bags, optimizers, read_clicks(options.data), log)
        if rank == 0:
            report(options, tower, bags, log=log)


def train_local(options):
    """The same model with torch.nn.EmbeddingBag in one process."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    labels, numbers, keys = read_clicks(options.data)
    known, index = keys.unique(return_inverse=True)  # the last row is for unknown categories
    bags = torch.nn.EmbeddingBag(len(known) + 1, options.dim, mode="sum", sparse=True)
    torch.nn.init.normal_(bags.weight, 0.0, 0.01)
    tower = Tower(options.dim)
    optimizers = [torch.optim.Adam(tower.parameters(), lr=0.001),
                  torch.optim.Adagrad(bags.parameters(), lr=options.rate)]
    options.workers = 1
    fit(options, 0, tower, bags, optimizers, (labels, numbers, index.view_as(keys)))

    def keys_of(keys):
        place = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
        return torch.where(known[place] == keys, place, torch.tensor(len(known)))

    report(options, tower, bags, keys_of)


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; allowed: 1 and more")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="training file, in Criteo's format")
    parser.add_argument("--test", required=True, help="test file")
    parser.add_argument("--workers", type=positive, default=2, help="number of workers (2)")
    parser.add_argument("--epochs", type=positive, default=2, help="passes over the training file (2)")
    parser.add_argument("--batch", type=positive, default=256, help="lines of a step, of all workers (256)")
    parser.add_argument("--dim", type=positive, default=8, help="numbers of an embedding (8)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate of the embeddings (0.05)")
    parser.add_argument("--local", action="store_true", help="one process, without servers")
    parser.add_argument("--cluster", help="HOST:PORT of the coordinator; default: a cluster of its own")
    parser.add_argument("--rank", type=int, help="with --cluster: which worker this is")
    parser.add_argument("--job", default="dlrm", help="with --cluster: name of the job (dlrm)")
    parser.add_argument("--log", metavar="FILE", help="write the log of the run, for verbena-plot; not with --local")
    options = parser.parse_args()
    if options.local:
        if options.log:
            parser.error("--log is of a run on servers; leave out --local")
        return train_local(options)
    if options.cluster:
        if options.rank is None:
            parser.error("--cluster needs --rank")
        return train(options.cluster, options, options.rank)
    spawn = multiprocessing.get_context("spawn")
    with verbena.local_cluster(servers=2) as cluster:
        workers = [spawn.Process(target=train, args=(cluster.address, options, rank))
                   for rank in range(options.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed")


if __name__ == "__main__":
    main()
