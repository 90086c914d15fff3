"""Embedding tables: rows, bags, scans."""
import numpy as np
import pytest

import verbena


@pytest.fixture
def table(client):
    return client.table(f"rows-{client.info()['incarnation']}", dim=4, rate=1, consistency="async")


def rows(*values):
    return np.repeat(np.array(values, np.float32)[:, None], 4, axis=1)


def test_rows_are_pushed_and_looked_up(client, table):
    assert table.embedding and table.shape == () and table.dim == 4
    client.push_rows(table, [7, 2**64 - 1, 7], rows(1, 2, 3)).wait()
    assert np.array_equal(client.lookup(table, [7, 2**64 - 1, 5]).wait(), rows(-4, -2, 0))
    found = np.zeros((2, 4), np.float32)
    assert client.lookup(table, np.array([5, 7], np.int64), found).wait() is found
    assert np.array_equal(found, rows(0, -4))


def test_assigned_rows(client, table):
    client.assign_rows(table, np.array([1, 2], np.uint64), rows(5, 6)).wait()
    assert np.array_equal(client.lookup(table, [2, 1]).wait(), rows(6, 5))


def test_bags(client, table):
    client.assign_rows(table, [1, 2, 3], rows(1, 2, 3)).wait()
    assert np.array_equal(client.lookup_bags(table, [1, 2, 3], [0, 2]).wait(), rows(3, 3))
    mean = client.lookup_bags(table, [1, 2, 3], [0, 2, 3], mode="mean").wait()
    assert np.array_equal(mean, rows(1.5, 3, 0))
    weighted = client.lookup_bags(table, [1, 2], [0], weights=[10, 100]).wait()
    assert np.array_equal(weighted, rows(210))
    with pytest.raises(ValueError, match="mode is 'max'; allowed: sum, mean, sqrtn"):
        client.lookup_bags(table, [1], [0], mode="max")
    with pytest.raises(ValueError, match="weights has 1 elements; allowed: 2"):
        client.lookup_bags(table, [1, 2], [0], weights=[1])


def test_a_scan_returns_every_row(client, table):
    keys = np.arange(5000, dtype=np.uint64)
    client.assign_rows(table, keys, np.repeat(keys[:, None].astype(np.float32), 4, axis=1)).wait()
    found = {}
    for batch, values in client.scan(table):
        assert values.shape == (len(batch), 4)
        found.update(zip(batch.tolist(), values[:, 0].tolist()))
    assert found == {key: float(key) for key in range(5000)}


def test_a_scan_may_be_given_up(client, table):
    client.assign_rows(table, range(5000), np.zeros((5000, 4), np.float32)).wait()
    for _ in client.scan(table):
        break
    with pytest.raises(ValueError, match="embedding table"):
        list(client.scan(client.table("dense-scan", shape=3)))


def test_a_dropped_table_ends_a_scan(client, table):
    client.drop_table(table.name)
    with pytest.raises(verbena.NotFoundError):
        list(client.scan(table))


def test_empty_calls(client, table):
    assert client.lookup(table, []).wait().shape == (0, 4)
    client.push_rows(table, [], np.zeros((0, 4), np.float32)).wait()
    client.prefetch(table, [1, 2, 3]).wait()


def test_wrong_keys_and_rows(client, table):
    with pytest.raises(TypeError, match="keys.*allowed: uint64 or int64"):
        client.lookup(table, np.zeros(3, np.float32), np.zeros((3, 4), np.float32))
    with pytest.raises(TypeError, match="keys.*allowed: uint64 or int64"):
        client.lookup(table, ["a"], np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError, match=r"rows has 4 elements \(shape \(1, 4\)\); allowed: 8"):
        client.lookup(table, [1, 2], np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError, match="gradients has 3 elements"):
        client.push_rows(table, [1], np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="table 'dense-keys' is dense"):
        client.lookup(client.table("dense-keys", shape=3), [1], np.zeros((1, 4), np.float32))
