"""Prints the microseconds of a push_pull in Python and in C, in turn.

    calls.py HOST:PORT LIBRARY MEMORY BYTES CALLS PAIRS

LIBRARY is c_calls.cc. Each of the PAIRS lines has those of a block of CALLS calls in Python and of
the block in C beside it, in the same process. See main.cc.
"""
import ctypes
import sys
import time

import numpy as np

import verbena

cluster, library, memory, size, calls, pairs = *sys.argv[1:4], *map(int, sys.argv[4:])
name = f"python-{memory}-{size}"
count = size // 4
c = ctypes.CDLL(library)
c.bench_open.restype = ctypes.c_void_p
c.bench_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
c.bench_run.restype = ctypes.c_double
c.bench_run.argtypes = [ctypes.c_void_p, ctypes.c_int]
c.bench_close.argtypes = [ctypes.c_void_p]

with verbena.connect(cluster, job=name) as client:
    table = client.table(name, shape=count, rate=1e-6, consistency="async")
    if memory == "torch":
        import torch
        gradient, weights = torch.zeros(count), torch.zeros(count)
    elif memory == "parts":
        both = client.empty(2 * count)
        gradient, weights = both[:count], both[count:]
    else:
        make = client.empty if memory == "empty" else lambda n: np.zeros(n, np.float32)
        gradient, weights = make(count), make(count)
    side = c.bench_open(cluster.encode(), memory.encode(), size)

    def in_python():
        start = time.perf_counter()
        for _ in range(calls):
            client.push_pull(table, gradient, weights).wait()
        return (time.perf_counter() - start) / calls * 1e6

    def in_c():
        return c.bench_run(side, calls)

    in_python()
    in_c()
    for number in range(pairs):
        if number % 2:
            second, first = in_c(), in_python()
        else:
            first, second = in_python(), in_c()
        print(first, second)
    c.bench_close(side)
