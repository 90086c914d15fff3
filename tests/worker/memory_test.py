#!/usr/bin/env python3
"""verbena-train takes bounded memory for an input of any size, and gives the same bits again.

    memory_test.py VERBENA_TRAIN [MEGABYTES]

Beside --help's memory (libraries, code) a worker may take 256 MiB with the default
--input-memory, and a quarter of that with 12 MiB.
"""
import os
import random
import re
import subprocess
import sys
import tempfile


def run(train, arguments, limit_mib=None):
    """The greatest resident size in MiB, and the output."""
    with tempfile.NamedTemporaryFile("w+") as out:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            os.execv(train, [train] + arguments)
        _, status, usage = os.wait4(pid, 0)
        out.seek(0)
        text = out.read()
    if status != 0:
        sys.exit(f"{arguments}: status {status}\n{text}")
    resident = usage.ru_maxrss / 1024
    if limit_mib is not None and resident > limit_mib:
        sys.exit(f"{arguments}: {resident:.0f} MiB resident, more than {limit_mib:.0f}\n{text}")
    return resident, text


def write_input(path, megabytes):
    draw = random.Random(1)
    lines = []
    for _ in range(2000):
        integers = [str(draw.randrange(500)) for _ in range(13)]
        categories = [f"{draw.randrange(200):x}" for _ in range(26)]
        lines.append("\t".join([str(draw.randrange(2))] + integers + categories) + "\n")
    piece = "".join(lines).encode()
    with open(path, "wb") as out:
        for _ in range(megabytes * 1000000 // len(piece) + 1):
            out.write(piece)


def main():
    train = sys.argv[1]
    megabytes = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    base, _ = run(train, ["--help"])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "input")
        write_input(path, megabytes)
        common = ["--local", "--format", "criteo", "--model", "embedding-logistic", "--data", path,
                  "--batch", "4096", "--epochs", "1", "--checksum"]
        for memory, limit in ((96 << 20, 256), (12 << 20, 64)):
            hashes = set()
            for _ in range(2):
                resident, text = run(train, common + ["--input-memory", str(memory)], base + limit)
                hashes.add(re.search(r"xxh64 (\w+)", text).group(1))
                print(f"{megabytes} MB, --input-memory {memory}: {resident:.0f} MiB resident, "
                      f"{base:.0f} without an input; {text.splitlines()[-3]}")
            if len(hashes) != 1:
                sys.exit(f"two runs differ: {hashes}")


main()
