"""Arguments that are memory: accepted without a copy, or refused by name."""
import array
import gc
import mmap

import numpy as np
import pytest

import verbena


@pytest.fixture
def table(client):
    return client.table(f"arguments-{client.info()['incarnation']}", shape=(2, 3), rate=1,
                        consistency="async")


def ones():
    return np.ones((2, 3), np.float32)


def test_the_buffer_protocol(client, table):
    client.push(table, array.array("f", [1] * 6)).wait()
    client.push(table, memoryview(ones())).wait()
    memory = mmap.mmap(-1, 4096)
    client.pull(table, memoryview(memory)[:24].cast("f")).wait()
    assert array.array("f", memory[:24]).tolist() == [-2] * 6


def test_read_only_arrays_are_pushed_and_not_pulled_into(client, table):
    gradient = ones()
    gradient.flags.writeable = False
    client.push(table, gradient).wait()
    with pytest.raises(ValueError, match="destination is read-only"):
        client.pull(table, gradient)


@pytest.mark.parametrize("options, error, text", [
    ({"read_from": "follower"}, ValueError, "read_from is 'follower'; allowed: 'primary', 'any'"),
    ({"read_from": "any", "max_staleness": 0}, ValueError, "max_staleness is 0; allowed: 0.001 to"),
    ({"read_from": "any", "max_staleness": float("nan")}, ValueError, "max_staleness is nan"),
    ({"read_from": "any", "max_staleness": 1e9}, ValueError, "allowed: 0.001 to 4294967 seconds"),
    ({"read_from": "any", "max_staleness": "2 s"}, TypeError, "max_staleness is '2 s'"),
])
def test_replicas_to_read_from(client, table, options, error, text):
    with pytest.raises(error, match=text):
        client.pull(table, **options)
    assert np.all(client.pull(table, read_from="any", max_staleness=0.5).wait() == 0)


@pytest.mark.parametrize("argument, error, text", [
    (np.ones((2, 3)), TypeError, "gradient has elements of type float64; allowed: float32"),
    (np.ones((2, 3), np.int32), TypeError, "elements of type int32"),
    (np.ones((2, 3), ">f4"), TypeError, "elements of type >f4"),
    (np.ones((3, 2), np.float32).T, ValueError, r"gradient \(shape \(2, 3\)\) is not contiguous"),
    (np.ones(12, np.float32)[::2], ValueError, "not contiguous"),
    (np.ones(5, np.float32), ValueError, r"gradient has 5 elements \(shape \(5,\)\); allowed: 6"),
    ([1.0] * 6, TypeError, "gradient is of type list; allowed: a NumPy array"),
    (None, TypeError, "gradient is of type NoneType"),
    (b"24 bytes, and not floats.", TypeError, "gradient has elements of type another type"),
])
def test_wrong_gradients_name_the_argument(client, table, argument, error, text):
    with pytest.raises(error, match=text):
        client.push(table, argument)


def test_a_released_view_is_refused(client, table):
    view = memoryview(ones())
    view.release()
    with pytest.raises(ValueError, match="gradient: .*released"):
        client.push(table, view)


def test_wrong_calls(client, table):
    with pytest.raises(ValueError, match="timeout is -1.*; allowed: seconds, 0 or more"):
        client.push(table, ones(), timeout=-1)
    with pytest.raises(TypeError, match="timeout"):
        client.push(table, ones(), timeout="soon")
    with pytest.raises(TypeError, match="count is -1; allowed: elements"):
        client.push(table, ones(), count=-1)
    with pytest.raises(ValueError, match="first is 6; allowed: less than 6"):
        client.pull(table, first=6)
    with pytest.raises(ValueError, match="is an embedding table; allowed: a table with a shape"):
        client.push(client.table("not-dense", dim=3), ones())


def test_memory_is_registered_once_and_as_long_as_it_lives(client, table):
    gradient = ones()
    for _ in range(3):
        client.push(table, gradient).wait()
        client.push(table, gradient[:]).wait()
    assert client.registered_regions == 1
    view = gradient[1:]
    del gradient
    gc.collect()
    assert client.registered_regions == 1
    del view
    gc.collect()
    assert client.registered_regions == 0


def test_views_share_the_region_of_their_array(client):
    table = client.table("views", shape=4, rate=1, consistency="async")
    both = np.zeros(8, np.float32)
    both[:4] = 1
    for _ in range(2):
        client.push_pull(table, both[:4], both[4:]).wait()
    assert both.tolist() == [1] * 4 + [-2] * 4
    client.push(table, both[:4]).wait()
    client.pull(table, both[4:]).wait()
    assert both[4:].tolist() == [-3] * 4
    assert client.registered_regions == 1


def test_an_array_at_the_place_of_another(client, table):
    for number in range(100):
        gradient = np.full((2, 3), number, np.float32)
        client.push(table, gradient).wait()
        del gradient
    assert client.pull(table).wait()[0, 0] == -sum(range(100))
    assert client.registered_regions == 0


def test_memory_in_use_outlives_its_array(client):
    table = client.table("outlives", shape=1000, rate=1)
    handle = client.push(table, np.ones(1000, np.float32))
    assert client.registered_regions == 1  # the step is open: the library reads it later
    gc.collect()
    noise = [np.full(1000, 9, np.float32) for _ in range(100)]
    client.end_step(table)
    handle.wait()
    assert np.all(client.pull(table).wait() == -1)
    assert client.registered_regions == 0 and len(noise) == 100


def test_a_dropped_handle_keeps_the_memory(client):
    table = client.table("dropped-handle", shape=1000, rate=1)
    client.push(table, np.ones(1000, np.float32))
    assert client.registered_regions == 1
    client.end_step(table).wait()
    assert np.all(client.pull(table).wait() == -1)
    client.pull(table).wait()
    assert client.registered_regions == 0


def test_memory_cannot_move_while_it_is_in_use(client):
    table = client.table("moving", shape=3, rate=1)
    gradient = array.array("f", [1, 1, 1])
    handle = client.push(table, gradient)
    with pytest.raises(BufferError):
        gradient.append(1)
    client.end_step(table)
    handle.wait()
    gradient.append(1)
    client.push_pull(table, memoryview(gradient)[1:], np.zeros(3, np.float32)).wait()


def test_empty_needs_no_staging(client):
    table = client.table("shared", shape=100000, rate=1, consistency="async")
    gradient, weights = client.empty(table.shape), client.empty(table.shape)
    assert gradient.flags.writeable and not gradient.any()
    before = client.statistics()
    gradient[:] = 1
    client.push_pull(table, gradient, weights).wait()
    after = client.statistics()
    assert np.all(weights == -1)
    assert after["staged_bytes"] == before["staged_bytes"]
    assert after["referenced_bytes"] - before["referenced_bytes"] == table.info["gradient_bytes"]
    assert client.registered_regions == 0


def test_empty_has_types_and_shapes(client):
    assert client.empty(3).shape == (3,)
    assert client.empty((2, 0)).shape == (2, 0)
    assert client.empty((2, 3), "bf16").dtype == np.uint16
    assert client.empty((2, 3), np.float64).dtype == np.float64
    assert client.empty([2, 3], "f16").dtype == np.float16


def test_an_array_of_empty_outlives_its_client(cluster):
    with verbena.connect(cluster, job="short") as client:
        array_of_region = client.empty(1000)
    del client
    gc.collect()
    array_of_region[:] = 1
    assert array_of_region.sum() == 1000


def test_dlpack(client, table):
    class Array:
        """Only the methods of the array API standard."""

        def __init__(self, memory):
            self.memory = memory

        def __dlpack__(self, stream=None):
            return self.memory.__dlpack__()

        def __dlpack_device__(self):
            return self.memory.__dlpack_device__()

    mine = Array(ones())
    client.push(table, mine).wait()
    client.push(table, mine).wait()
    assert client.registered_regions == 1
    client.pull(table, mine).wait()
    assert np.all(mine.memory == -2)
    with pytest.raises(TypeError, match="destination has elements of type float64"):
        client.pull(table, Array(np.ones((2, 3))))
    with pytest.raises(ValueError, match="destination is not contiguous"):
        client.pull(table, Array(np.ones((3, 2), np.float32).T))


def test_a_destination_overlaps_its_gradient_only_where_they_are_the_same(client, table):
    memory = np.ones(7, np.float32)
    with pytest.raises(verbena.InvalidArgumentError, match="overlaps"):
        client.push_pull(table, memory[:6], memory[1:]).wait()
    client.push_pull(table, memory[:6], memory[:6]).wait()
    assert memory.tolist() == [-1] * 6 + [1]


def test_a_shape_may_be_a_number_of_numpy(client):
    assert client.empty(np.prod((2, 3))).shape == (6,)
    name = f"shape-{client.info()['incarnation']}"
    assert client.table(name, shape=np.int64(3)).shape == (3,)


@pytest.mark.parametrize("keys, kind", [
    ([1.7], "float"), (["5"], "str"), ([True], "bool"), ([1, True], "bool"), ([[1, 2.0]], "float"),
    ([np.float32(1)], "float"), ("5", "str"), ((None,), "NoneType"), ([[1], [2, 3]], "list")])
def test_keys_are_not_rounded_or_parsed(client, keys, kind):
    table = client.table(f"keys-{client.info()['incarnation']}", dim=2, consistency="async")
    rows = np.zeros((len(keys), 2), np.float32)
    for call in (lambda: client.lookup(table, keys, rows), lambda: client.lookup(table, keys),
                 lambda: client.prefetch(table, keys),
                 lambda: client.push_rows(table, keys, rows)):
        with pytest.raises(TypeError, match=f"keys has elements of type {kind}.*; allowed: uint64 or int64"):
            call()


@pytest.mark.parametrize("wrong", [-1, 2 ** 64])
def test_keys_out_of_range(client, wrong):
    table = client.table(f"range-{client.info()['incarnation']}", dim=2, consistency="async")
    with pytest.raises(ValueError, match=f"keys has {wrong}; allowed: "):
        client.lookup(table, [1, wrong])


@pytest.mark.parametrize("keys", [
    [1, 2 ** 63], [], [[1, 2]], (3,), range(3), [np.int64(4), 5], np.array([2 ** 63], np.uint64),
    np.array([-1]), memoryview(np.arange(3))], ids=repr)
def test_integers_are_keys(client, keys):
    table = client.table(f"good-{client.info()['incarnation']}", dim=2, rate=1, consistency="async")
    client.push_rows(table, keys, np.ones((np.size(keys), 2), np.float32)).wait()
    assert np.all(client.lookup(table, keys).wait() == -1)
    flat = np.ravel(np.array(keys, object)).astype(object)
    assert np.all(client.lookup(table, np.array([k % 2 ** 64 for k in flat], np.uint64)).wait() == -1)


def test_offsets_and_weights_are_numbers(client):
    table = client.table(f"bags-{client.info()['incarnation']}", dim=2, rate=1, consistency="async")
    client.push_rows(table, [1, 2], np.ones((2, 2), np.float32)).wait()
    for offsets in ([0.0], [False]):
        with pytest.raises(TypeError, match="offsets has elements of type"):
            client.lookup_bags(table, [1, 2], offsets)
    for weights in (["1", "2"], [1j, 1], [None, 1]):
        with pytest.raises(TypeError, match="weights has elements of type"):
            client.lookup_bags(table, [1, 2], [0], weights=weights)
    for weights in ([1, 0.5], (np.float64(1), np.float32(0.5))):
        assert np.all(client.lookup_bags(table, [1, 2], [0], weights=weights).wait() == -1.5)
