"""Trains a character model by DiLoCo: workers exchange parameters every 20 steps, in int8 if wanted.

    python3 diloco.py                          a cluster of its own, 2 workers
    python3 diloco.py --quantize --compare     int8, and then synchronous training of the same model
    python3 diloco.py --kill 10                the last worker is killed after round 10
    python3 diloco.py --join 20                another worker joins after round 20
    python3 diloco.py --text BOOK              text of a file, not generated text
    python3 diloco.py --cluster HOST:PORT --workers 4 --rank 0     one of 4 workers of a cluster

Each worker trains on its own part of the text. The loss is that of held-out text, in bits per byte.
--compare trains by DistributedOptimizer with as many steps over the same batches, which exchanges in
every step, and prints both losses and the bytes of a worker.
"""
import argparse
import math
import multiprocessing
import os
import random
import signal
import time

import torch

import verbena
import verbena.torch

CONTEXT = 12  # characters
BATCH = 64  # of a worker in a step
WIDTH = 192  # hidden units
RATE = 0.004
WARM_UP = 50  # steps
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
HELD_OUT = 20_000  # characters


def generate_text(characters=400_000):
    """Sentences of invented words, of which each is followed by few others."""
    generator = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.choice((1, 2, 2, 3))))
             for _ in range(60)]
    followers = {word: generator.sample(words, 5) for word in words}
    text, length, word = [], 0, words[0]
    while length < characters:
        sentence = []
        for _ in range(generator.randint(4, 12)):
            word = generator.choices(followers[word], (16, 8, 4, 2, 1))[0]
            sentence.append(word)
        text.append(" ".join(sentence).capitalize() + ". ")
        length += len(text[-1])
    return "".join(text).encode()


def read_text(path):
    """Bytes as int64: for training, and held out."""
    text = generate_text()
    if path:
        with open(path, "rb") as file:
            text = file.read()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    if len(data) < 5 * HELD_OUT:
        raise SystemExit(f"{path} has {len(data)} bytes; wanted: at least {5 * HELD_OUT}")
    return data[:-HELD_OUT], data[-HELD_OUT:]


class CharacterModel(torch.nn.Module):
    """Predicts a character from those before it, by a layer of hidden units."""

    def __init__(self):
        super().__init__()
        self.characters = torch.nn.Embedding(256, 16)
        self.hidden = torch.nn.Linear(16 * CONTEXT, WIDTH)
        self.output = torch.nn.Linear(WIDTH, 256)

    def loss(self, characters):
        """The mean over [batch, CONTEXT + 1] characters, of which the last are predicted."""
        hidden = torch.relu(self.hidden(self.characters(characters[:, :-1]).flatten(1)))
        return torch.nn.functional.cross_entropy(self.output(hidden), characters[:, -1])


def bits_per_byte(model, text):
    with torch.no_grad():
        return model.loss(text.unfold(0, CONTEXT + 1, 1)).item() / math.log(2)


def most_workers(options):
    return options.workers + bool(options.join)


class Worker:
    """One of the workers: its text, and the training of a model."""

    def __init__(self, client, options, joined):
        """joined: an event of the processes, set when a worker has joined the run."""
        self.client = client
        self.options = options
        self.joined = joined
        self.rank = client.rank
        text, self.held_out = read_text(options.text)
        part = len(text) // most_workers(options)
        self.text = text[self.rank * part:(self.rank + 1) * part]
        self.steps = options.rounds * options.sync_every

    def schedule(self, optimizer, first):
        """A warm-up, and then a cosine to a tenth of the rate; from step `first` on."""
        def factor(step):
            step += first
            return min((step + 1) / WARM_UP, 0.55 + 0.45 * math.cos(math.pi * step / self.steps))
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def train(self, name, model, optimizer, first=0):
        """All steps from step `first` on; returns seconds, and bytes pushed and pulled."""
        scheduler = self.schedule(optimizer, first)
        generator = torch.Generator().manual_seed(self.rank)
        start, before = time.perf_counter(), self.client.statistics()
        for step in range(first + 1, self.steps + 1):
            begin = torch.randint(len(self.text) - CONTEXT, (BATCH, 1), generator=generator)
            optimizer.zero_grad()
            loss = model.loss(self.text[begin + torch.arange(CONTEXT + 1)])
            loss.backward()
            optimizer.step()  # of DiLoCo: every sync_every-th also exchanges parameters
            scheduler.step()
            if step % self.options.sync_every == 0:
                self.end_round(name, step // self.options.sync_every, loss.item())
        now = self.client.statistics()
        return (time.perf_counter() - start,
                *(now[key] - before[key] for key in ("bytes_pushed", "bytes_pulled")))

    def end_round(self, name, number, loss):
        rounds, live = self.options.rounds, self.client.info()["live_workers"]
        if self.rank == 0 and (number % max(1, rounds // 5) == 0 or number == rounds):
            print(f"{name}: round {number} of {rounds}, loss {loss / math.log(2):.3f} bits per byte, "
                  f"{live} workers", flush=True)
        if number == self.options.kill and self.rank == self.options.workers - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self.options.join and self.rank == 0:
            self.joined.start.set()
            if not self.joined.done.wait(60):  # else a short run would be over
                raise SystemExit("no worker has joined in 60 s")

    def report(self, name, model, run):
        loss = bits_per_byte(model, self.held_out)
        if self.rank == 0:
            seconds, pushed, pulled = run
            print(f"{name}: held-out loss {loss:.4f} bits per byte; a worker pushed {pushed} bytes and "
                  f"pulled {pulled} bytes; {self.options.workers} workers, {self.steps} steps, "
                  f"{seconds:.1f} s", flush=True)
        return loss

    def run_diloco(self):
        model = CharacterModel()
        inner = torch.optim.AdamW(model.parameters(), lr=RATE)
        with verbena.torch.DiLoCo(
                [model], inner, "nesterov", self.options.sync_every, self.options.quantize,
                client=self.client, name="diloco", rate=OUTER_RATE,
                parameters={"momentum": OUTER_MOMENTUM}) as exchange:
            if exchange.steps > 0:
                print(f"diloco: a worker joins with round {exchange.steps // self.options.sync_every + 1}",
                      flush=True)
            run = self.train("diloco", model, inner, exchange.steps)
        return self.report("diloco", model, run), run

    def run_synchronous(self):
        model = CharacterModel()
        optimizer = verbena.torch.DistributedOptimizer(
            model.named_parameters(), torch.optim.AdamW(model.parameters(), lr=RATE),
            client=self.client, name="synchronous")
        run = self.train("synchronous", model, optimizer)
        return self.report("synchronous", model, run), run


class Joining:
    """Events: a worker may join; it has joined."""

    def __init__(self, context):
        self.start, self.done = context.Event(), context.Event()


def work(cluster, options, rank=None, joined=None):
    """rank: None for a worker that joins the run."""
    torch.set_num_threads(1)
    with verbena.connect(cluster, job="diloco", rank=rank, expected_workers=options.workers,
                         max_workers=most_workers(options) if options.join else None) as client:
        if rank is None:
            joined.done.set()
        worker = Worker(client, options, joined)
        torch.manual_seed(0)
        loss, (_, pushed, pulled) = worker.run_diloco()
        if not options.compare:
            return
        torch.manual_seed(0)
        other, (_, its_pushed, its_pulled) = worker.run_synchronous()
        if rank == 0:
            print(f"difference of the losses: {100 * (loss / other - 1):+.2f} %; DiLoCo pushed "
                  f"1/{its_pushed / pushed:.0f} and pulled 1/{its_pulled / pulled:.0f} of the bytes",
                  flush=True)


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
    parser.add_argument("--rounds", type=positive, default=75, help="exchanges of parameters (75)")
    parser.add_argument("--sync-every", type=positive, default=20, help="steps of a round (20)")
    parser.add_argument("--quantize", action="store_true", help="push int8")
    parser.add_argument("--compare", action="store_true", help="then train synchronously, too")
    parser.add_argument("--kill", type=positive, metavar="ROUND",
                        help="kill the last worker after this round, to see the others go on")
    parser.add_argument("--join", type=positive, metavar="ROUND",
                        help="another worker joins after this round")
    parser.add_argument("--text", metavar="FILE", help="text to learn; default: generated")
    options = parser.parse_args()
    if options.kill and (options.compare or options.cluster or options.workers < 2):
        parser.error("--kill needs --workers 2 or more, and neither --compare nor --cluster")
    if options.join and (options.compare or options.cluster or options.join >= options.rounds):
        parser.error("--join needs a round before the last one, and neither --compare nor --cluster")
    if options.cluster:
        if options.rank is None or not 0 <= options.rank < options.workers:
            parser.error(f"--cluster needs --rank, 0 to {options.workers - 1}")
        return work(options.cluster, options, options.rank)
    spawn = multiprocessing.get_context("spawn")
    joined = Joining(spawn)
    with verbena.local_cluster(servers=1, options=("--lease-ms", "2000")) as cluster:
        workers = [spawn.Process(target=work, args=(cluster.address, options, rank, joined))
                   for rank in range(options.workers)]
        for worker in workers:
            worker.start()
        if options.join:
            while not joined.start.wait(0.1) and workers[0].is_alive():
                pass
            workers.append(spawn.Process(target=work, args=(cluster.address, options, None, joined)))
            workers[-1].start()
        for worker in workers:
            worker.join()
    wanted = [0] * len(workers)
    if options.kill and options.kill <= options.rounds:
        wanted[options.workers - 1] = -signal.SIGKILL
    if [worker.exitcode for worker in workers] != wanted:
        raise SystemExit("a worker failed")


if __name__ == "__main__":
    main()
