"""Prints the microseconds of a push_pull: calls.py HOST:PORT MEMORY BYTES CALLS RUN. See main.cc."""
import sys
import time

import numpy as np

import verbena

cluster, memory, size, calls, run = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
name = f"python-{memory}-{size}-{run}"
count = size // 4
with verbena.connect(cluster, job=name) as client:
    table = client.table(name, shape=count, rate=1e-6, consistency="async")
    if memory == "torch":
        import torch
        gradient, weights = torch.zeros(count), torch.zeros(count)
    else:
        make = client.empty if memory == "empty" else lambda n: np.zeros(n, np.float32)
        gradient, weights = make(count), make(count)

    def repeat(times):
        for _ in range(times):
            client.push_pull(table, gradient, weights).wait()

    repeat(calls // 10 + 1)
    start = time.perf_counter()
    repeat(calls)
    print((time.perf_counter() - start) / calls * 1e6)
