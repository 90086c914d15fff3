"""Dense tables: creating, pushing, pulling, steps, optimizers."""
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import verbena


def ones(count, value=1.0):
    return np.full(count, value, np.float32)


def test_a_step_applies_the_optimizer(client):
    table = client.table("sgd", shape=(10, 3), optimizer="sgd", rate=0.5)
    assert (table.shape, table.elements, table.dtype) == ((10, 3), 30, "f32")
    weights = np.zeros((10, 3), np.float32)
    assert client.push_pull(table, ones((10, 3)), weights).wait() is weights
    assert np.all(weights == -0.5)
    client.push(table, ones((10, 3)))
    client.end_step(table).wait()
    assert np.all(client.pull(table).wait() == -1)


def test_the_example_of_the_guide():
    example = os.path.join(os.environ["VERBENA_ROOT"], "worker/python/examples/ten_lines.py")
    result = subprocess.run([sys.executable, example], text=True, capture_output=True, timeout=60, check=True)
    assert (result.stdout, result.stderr) == ("weights[0] = 0.6513 after 10 steps\n", "")


def test_two_workers_in_threads_sum_their_gradients(connect):
    clients = []
    threads = [threading.Thread(target=lambda rank=rank: clients.append(
        connect(expected_workers=2, rank=rank))) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tables = [c.table("shared", shape=4, rate=1, reduction="sum") for c in clients]
    handles = [c.push_pull(t, ones(4, c.rank + 1), np.zeros(4, np.float32))
               for c, t in zip(clients, tables)]
    for handle in handles:
        assert np.all(handle.wait() == -3)


def test_ranges(client):
    table = client.table("ranges", shape=256, chunk_bytes=256, rate=1, consistency="async")
    assert table.chunk_elements == 64
    client.push(table, ones(64), first=64, count=64).wait()
    pulled = client.pull(table, np.zeros(128, np.float32), first=64, count=128).wait()
    assert np.all(pulled[:64] == -1) and np.all(pulled[64:] == 0)
    with pytest.raises(verbena.InvalidArgumentError, match="chunk"):
        client.push(table, ones(64), first=1, count=64)


def test_initial_values(client):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    table = client.table("array", init=array, rate=1)
    assert table.shape == (3, 4)
    assert np.array_equal(client.pull(table).wait(), array)
    assert np.all(client.pull(client.table("five", shape=7, init=("constant", 5))).wait() == 5)
    noise = client.pull(client.table("noise", shape=10000, init=("normal", 1, 0.1))).wait()
    assert abs(noise.mean() - 1) < 0.01 and abs(noise.std() - 0.1) < 0.01
    with pytest.raises(ValueError, match="allowed: an array, or one of zeros"):
        client.table("wrong", shape=3, init="ones")


def test_assigning(client):
    table = client.table("assigned", shape=5, consistency="async", rate=1)
    client.assign(table, ones(5, 3)).wait()
    client.push(table, ones(5)).wait()
    assert np.all(client.pull(table).wait() == 2)


def test_changing_the_optimizer(client):
    table = client.table("changed", shape=5, consistency="async", optimizer="momentum", rate=1,
                         parameters={"momentum": 0.5})
    client.set_optimizer(table, rate=2, momentum=0.25).wait()
    client.push(table, ones(5)).wait()
    assert np.all(client.pull(table).wait() == -2)
    with pytest.raises(verbena.InvalidArgumentError, match="momentum"):
        client.set_optimizer(table, beta=1).wait()


def test_tables_are_listed_and_dropped(client):
    client.table("listed", shape=(2, 2), description="a table")
    found = {info["name"]: info for info in client.tables()}["listed"]
    assert found["shape"] == (2, 2) and found["description"] == "a table"
    assert client.open_table("listed").shape == (2, 2)
    client.drop_table("listed")
    with pytest.raises(verbena.NotFoundError, match="listed") as caught:
        client.open_table("listed")
    assert caught.value.code == "NOT_FOUND"


def test_sixteen_bits(client):
    table = client.table("half", shape=8, dtype="f16", gradient_dtype="bf16", consistency="async",
                         rate=1)
    bits = np.full(8, 0x3F80, np.uint16)  # 1.0 as bf16
    client.push(table, bits).wait()
    pulled = client.pull(table).wait()
    assert pulled.dtype == np.float16 and np.all(pulled == -1)
    with pytest.raises(TypeError, match="gradient.*float32; allowed: bfloat16, or uint16"):
        client.push(table, ones(8))


def test_an_observer_pulls_and_does_not_push(client, connect):
    client.table("watched", shape=3, consistency="async")
    observer = connect(observer=True)
    assert observer.rank == -1
    table = observer.open_table("watched")
    assert np.all(observer.pull(table).wait() == 0)
    with pytest.raises(verbena.FailedPreconditionError, match="observer"):
        observer.push(table, ones(3)).wait()


def test_a_closed_client_refuses(client):
    table = client.table("closed", shape=3)
    client.close()
    client.close()
    assert client.closed and client.info()["incarnation"] == 0
    with pytest.raises(verbena.FailedPreconditionError, match="closed"):
        client.push(table, ones(3))


def test_a_table_belongs_to_its_client(connect, cluster):
    one = connect()
    table = one.table("own", shape=3)
    with verbena.connect(cluster, job="another") as two:
        with pytest.raises(verbena.InvalidArgumentError, match="another client"):
            two.push(table, ones(3))
