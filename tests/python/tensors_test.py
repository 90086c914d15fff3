"""PyTorch tensors on the CPU: no copy, registered by storage."""
import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import verbena  # noqa: E402: after the check


@pytest.fixture
def table(client):
    return client.table(f"tensors-{client.info()['incarnation']}", shape=(2, 3), rate=1,
                        consistency="async")


def test_a_push_pull_of_tensors(client, table):
    weights = torch.zeros(2, 3)
    assert client.push_pull(table, torch.ones(2, 3), weights).wait() is weights
    assert torch.equal(weights, torch.full((2, 3), -1.0))


def test_a_storage_is_registered_once(client, table):
    flat = torch.zeros(12)
    first, second = flat[:6].view(2, 3), flat[6:]
    for _ in range(3):
        client.pull(table, first).wait()
        client.pull(table, second).wait()
        client.push(table, torch.as_strided(flat, (6,), (1,), 3)).wait()
    assert client.registered_regions == 1


def test_gradient_and_destination_are_parts_of_one_storage(client):
    table = client.table("parts", shape=1000, rate=1)
    whole = torch.from_numpy(client.empty(3000)).fill_(1)
    client.push_pull(table, whole[1000:2000], whole[2000:]).wait()
    assert torch.equal(whole, torch.cat([torch.ones(2000), torch.full((1000,), -1.0)]))
    assert client.statistics()["staged_bytes"] == 0  # servers wrote to the place itself
    with pytest.raises(verbena.InvalidArgumentError, match="overlaps"):
        client.push_pull(table, whole[:1000], whole[1:1001])


def test_the_regions_of_ended_storages_are_freed(client, table):
    for _ in range(500):
        client.push(table, torch.ones(2, 3)).wait()
    assert client.registered_regions < 100
    assert client.pull(table).wait()[0, 0] == -500


def test_a_region_lives_as_long_as_its_storage(client, table):
    tensor = torch.ones(2, 3)
    view = tensor.view(6)
    client.push(table, tensor).wait()
    del tensor
    gc.collect()
    client.push(table, view).wait()
    assert client.registered_regions == 1


def test_a_tensor_with_new_data(client, table):
    tensor = torch.ones(2, 3)
    client.push(table, tensor).wait()
    tensor.data = torch.full((2, 3), 5.0)
    client.push(table, tensor).wait()
    assert client.pull(table).wait()[0, 0] == -6


def test_a_storage_in_use_outlives_its_tensor(client):
    table = client.table("outlives-torch", shape=1000, rate=1)
    tensor = torch.ones(1000)
    handle = client.push(table, tensor)
    tensor.data = torch.zeros(1)
    del tensor
    noise = [torch.full((1000,), 9.0) for _ in range(100)]
    client.end_step(table)
    handle.wait()
    assert client.pull(table).wait()[0] == -1 and len(noise) == 100


def test_sixteen_bits(client):
    table = client.table("half-torch", shape=8, dtype="bf16", gradient_dtype="bf16", rate=1,
                         consistency="async")
    weights = torch.zeros(8, dtype=torch.bfloat16)
    client.push_pull(table, torch.ones(8, dtype=torch.bfloat16), weights).wait()
    assert torch.all(weights == -1)
    with pytest.raises(TypeError, match="elements of type float16; allowed: bfloat16"):
        client.push(table, torch.ones(8, dtype=torch.float16))


def test_a_tensor_of_shared_memory_needs_no_staging(client):
    table = client.table("shared-torch", shape=100000, rate=1, consistency="async")
    weights = torch.from_numpy(client.empty(table.shape))
    before = client.statistics()["staged_bytes"]
    client.pull(table, weights[:]).wait()
    assert client.statistics()["staged_bytes"] == before and client.registered_regions == 0


def test_rows_and_keys(client):
    table = client.table("rows-torch", dim=4, rate=1, consistency="async")
    keys = torch.tensor([3, 1])
    client.push_rows(table, keys, torch.ones(2, 4)).wait()
    rows = client.lookup(table, keys, torch.zeros(2, 4)).wait()
    assert torch.all(rows == -1)
    assert np.all(client.lookup(table, keys).wait() == -1)
    sums = client.lookup_bags(table, keys, torch.tensor([0]), weights=torch.tensor([1.0, 2.0])).wait()
    assert np.all(sums == -3)
    with pytest.raises(TypeError, match="keys has elements of type torch.int32"):
        client.lookup(table, keys.int(), torch.zeros(2, 4))


def test_a_parameter_is_not_written_behind_autograd(client, table):
    weights = torch.nn.Parameter(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="destination requires grad.*detach"):
        client.pull(table, weights)
    client.assign(table, weights.detach() + 1).wait()
    with torch.no_grad():
        client.pull(table, weights).wait()
    assert torch.all(weights == 1)
    client.pull(table, weights.detach()).wait()
    client.assign(table, weights).wait()


@pytest.mark.parametrize("make, error, text", [
    (lambda: torch.ones(2, 3, dtype=torch.float64), TypeError, "float64; allowed: float32"),
    (lambda: torch.ones(3, 2).t(), ValueError, r"gradient \(shape \(2, 3\)\) is not contiguous"),
    (lambda: torch.ones(7), ValueError, r"gradient has 7 elements \(shape \(7,\)\); allowed: 6"),
    (lambda: torch.ones(2, 3, device="meta"), ValueError,
     "gradient: .*device 'meta'; allowed: cpu, cuda"),
    (lambda: torch.ones(2, 3).to_sparse(), ValueError, "gradient: .*(storage|[Ss]parse)"),
    (lambda: torch._neg_view(torch.ones(2, 3)), ValueError, "gradient: .*opposite.*resolve_neg"),
])
def test_wrong_tensors_name_the_argument(client, table, make, error, text):
    with pytest.raises(error, match=text):
        client.push(table, make())


def test_a_freed_tensor_is_refused(client, table):
    tensor = torch.ones(2, 3)
    tensor.storage().resize_(0)
    with pytest.raises(ValueError, match="gradient.*has no memory: its storage was freed"):
        client.push(table, tensor)


def test_a_written_tensor_is_one_that_changed_for_autograd(client, table):
    rows = client.table("rows-autograd", dim=3, consistency="async")
    for write in (lambda t: client.pull(table, t), lambda t: client.push_pull(table, torch.ones(2, 3), t),
                  lambda t: client.pull(table, t.view(6)), lambda t: client.lookup(rows, [1, 2], t)):
        factor, weights = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
        product = (weights * factor).sum()
        write(factor).wait()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
    factor, weights = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
    product = (weights * factor).sum()
    client.push(table, factor).wait()  # reads it
    product.backward()
    with torch.inference_mode():
        client.assign(table, torch.full((2, 3), 4.0)).wait()
        assert torch.all(client.pull(table, torch.ones(2, 3)).wait() == 4)


def test_a_tensor_may_get_another_storage_while_it_is_pushed(client):
    table = client.table("set-torch", shape=1000, rate=1)
    tensor = torch.ones(1000)
    handle = client.push(table, tensor)
    tensor.set_(torch.zeros(2000).untyped_storage() if hasattr(tensor, "untyped_storage")
                else torch.zeros(2000).storage())
    noise = [torch.full((1000,), 9.0) for _ in range(100)]
    client.end_step(table)
    handle.wait()
    assert client.pull(table).wait()[0] == -1 and len(noise) == 100


def test_a_storage_that_was_resized_between_operations_is_registered_again(client):
    table = client.table("resized-torch", shape=1000, rate=1, consistency="async")
    tensor = torch.ones(1000)
    client.push(table, tensor).wait()
    tensor.resize_(500_000).fill_(2)
    client.push(table, tensor[400_000:401_000]).wait()
    assert client.pull(table).wait().tolist() == [-3] * 1000
    assert client.registered_regions == 1
