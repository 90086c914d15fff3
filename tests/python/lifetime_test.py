"""Memory stays flat over many operations."""
import gc
import os

import numpy as np
import pytest

import verbena

CYCLES = 10_000
# A leak of 100 bytes a cycle would be a megabyte; allocators move by less than half of this.
ALLOWED_BYTES = 4 << 20


def resident():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flat(cycle):
    """Runs `cycle` to warm up, then CYCLES times; fails if memory grows."""
    for _ in range(CYCLES // 5):
        cycle()
    before = resident()
    for _ in range(CYCLES):
        cycle()
    assert resident() - before < ALLOWED_BYTES


def test_push_pull_of_the_same_arrays(client):
    table = client.table("flat", shape=1024, rate=1e-6)
    gradient, weights = np.ones(1024, np.float32), np.zeros(1024, np.float32)
    flat(lambda: client.push_pull(table, gradient, weights).wait())
    assert client.registered_regions == 2


def test_push_and_pull_of_new_arrays(client):
    table = client.table("flat-new", shape=1024, rate=1e-6, consistency="async")

    def cycle():
        client.push(table, np.ones(1024, np.float32))
        client.pull(table, np.empty(1024, np.float32)).wait()

    flat(cycle)
    client.pull(table).wait()
    assert client.registered_regions < 10


def test_a_dropped_client_ends_its_operations(cluster):
    client = verbena.connect(cluster, job="dropped-client", expected_workers=2)
    table = client.table("dropped-client", shape=1024, rate=1)
    handle = client.push(table, np.ones(1024, np.float32))
    del client
    gc.collect()
    with pytest.raises(verbena.CancelledError):
        handle.wait()


def test_futures_and_errors(client):
    table = client.table("flat-futures", shape=16, rate=1e-6, consistency="async")
    gradient = np.ones(16, np.float32)

    def cycle():
        client.push(table, gradient).get_future().result()
        try:
            client.push(table, gradient[1:])
        except ValueError:
            pass

    flat(cycle)
