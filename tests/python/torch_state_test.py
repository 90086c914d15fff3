"""The optimizer's state on the servers: read, written, and exchanged with torch.optim."""
import copy

import pytest

torch = pytest.importorskip("torch")
import verbena  # noqa: E402: after the check
from torch_support import distributed  # noqa: E402: it needs torch

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, weight_decay=0.01),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01, lr_decay=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
}


@pytest.fixture
def make(client):
    return distributed(client)


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))


def train(net, optimizer, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(16, 8, generator=generator)
        y = torch.randint(0, 3, (16,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def assert_close(net, other):
    for p, q in zip(net.parameters(), other.parameters()):
        assert p.detach().numpy() == pytest.approx(q.detach().numpy(), abs=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_goes_to_torch_optim(make, name):
    net = network()
    served = make(net.named_parameters(), OPTIMIZERS[name](net.parameters()))
    train(net, served, 7)
    saved = served.state_dict()
    other = copy.deepcopy(net)
    local = OPTIMIZERS[name](other.parameters())
    local.load_state_dict(saved)
    train(net, served, 3, seed=2)
    train(other, local, 3, seed=2)
    assert_close(net, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("consistency", ["sync", "async", "ssp"])
@pytest.mark.parametrize("bucket_bytes", [0, 1 << 20])
def test_state_comes_from_torch_optim(make, name, consistency, bucket_bytes):
    other = network()
    local = OPTIMIZERS[name](other.parameters())
    train(other, local, 7)
    net = copy.deepcopy(other)
    options = {"staleness": 1} if consistency == "ssp" else {}
    served = make(net.named_parameters(), OPTIMIZERS[name](net.parameters()),
                  consistency=consistency, bucket_bytes=bucket_bytes, **options)
    train(net, served, 2)  # it has state of its own, and other parameters
    net.load_state_dict(other.state_dict())
    served.load_state_dict(local.state_dict())
    assert_close(net, other)
    train(net, served, 3, seed=2)
    train(other, local, 3, seed=2)
    assert_close(net, other)


def test_state_has_the_names_and_values_of_torch_optim(make):
    net = network()
    other = copy.deepcopy(net)
    served = make(net.named_parameters(), OPTIMIZERS["adam"](net.parameters()))
    local = OPTIMIZERS["adam"](other.parameters())
    assert served.state_dict()["state"] == {}
    train(net, served, 4)
    train(other, local, 4)
    found, expected = served.state_dict(), local.state_dict()
    assert found["state"].keys() == expected["state"].keys()
    for index, entry in expected["state"].items():
        assert found["state"][index].keys() == entry.keys()
        for key, value in entry.items():
            assert found["state"][index][key].numpy() == pytest.approx(value.numpy(), abs=1e-6)
    assert found["param_groups"][0]["params"] == expected["param_groups"][0]["params"]


def test_groups_with_other_optimizers(make):
    """One group has momentum, and one weight decay alone: loading applies no gradient of zero."""
    def groups(net):
        return torch.optim.SGD([{"params": net[0].parameters(), "momentum": 0.9},
                                {"params": net[2].parameters(), "weight_decay": 0.5}], lr=0.1)
    net, other = network(), network()
    # The tables of a norm make their steps together; this one clips nothing.
    served = make(net.named_parameters(), groups(net), clip_global_norm=1e9)
    local = groups(other)
    train(net, served, 3)
    train(other, local, 3)
    served.load_state_dict(served.state_dict())
    train(net, served, 3)
    train(other, local, 3)
    assert_close(net, other)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_16_bits_keep_their_masters(make, kind):
    weight = torch.nn.Parameter(torch.ones(300000, dtype=kind))
    served = make([("w", weight)], "momentum", rate=2 ** -12, parameters={"momentum": 0.5})
    for _ in range(3):  # all together are less than half a unit in the last place
        weight.grad = torch.full_like(weight, 0.25)
        served.step()
    saved = served.state_dict()
    again = torch.nn.Parameter(torch.zeros_like(weight))
    loaded = make([("w", again)], "momentum", rate=2 ** -12, parameters={"momentum": 0.5},
                  name="again")
    loaded.load_state_dict(saved)
    for name in ("master", "momentum_buffer"):
        assert torch.equal(loaded.state_dict()["state"][0][name], saved["state"][0][name])
    assert torch.equal(again, weight)
    assert saved["state"][0]["master"].unique() != 1


def test_state_that_does_not_fit_is_refused(make):
    net = network()
    served = make(net.named_parameters(), OPTIMIZERS["adam"](net.parameters()))
    train(net, served, 1)
    saved = served.state_dict()
    before = served.state_dict()

    def refuse(match, **changes):
        entry = {**saved["state"][0], **changes}
        with pytest.raises(ValueError, match=match):
            served.load_state_dict({**saved, "state": {**saved["state"], 0: entry}})

    refuse("step 1 and '0.weight' at step 9", step=9)
    refuse("max_exp_avg_sq of '0.weight'", max_exp_avg_sq=torch.zeros(12, 8))
    refuse("exp_avg \\(3,\\) of '0.weight'", exp_avg=torch.zeros(3))
    refuse("exp_avg None of '0.weight'", exp_avg=None)
    with pytest.raises(ValueError, match="state of the parameters 4"):
        served.load_state_dict({**saved, "state": {**saved["state"], 4: saved["state"][0]}})
    with pytest.raises(ValueError, match="param groups"):
        served.load_state_dict({**saved, "param_groups": saved["param_groups"] * 2})
    after = served.state_dict()
    for index, entry in before["state"].items():
        for key, value in entry.items():
            assert torch.equal(after["state"][index][key], value)


def test_arrays_of_a_table(client):
    import numpy as np
    table = client.table("state-arrays", shape=(100, 7), optimizer="adamw", rate=0.1,
                         consistency="sync")
    try:
        assert table.state_arrays == ("exp_avg", "exp_avg_sq")
        client.push(table, np.full((100, 7), 2, "float32"))
        client.end_step(table).wait()
        handle = client.pull_state(table, "exp_avg_sq")
        assert handle.wait() == pytest.approx(np.full((100, 7), 0.004), rel=1e-4)
        assert handle.state_versions() == {"least_version": 1, "greatest_version": 1,
                                           "least_applies": 1, "greatest_applies": 1}
        parameters = client.pull(table).wait()
        wanted = np.arange(700, dtype="float32").reshape(100, 7)
        client.assign_state(table, "exp_avg", wanted, applies=41)
        client.end_step(table).wait()
        handle = client.pull_state(table, "exp_avg")
        assert (handle.wait() == wanted).all()
        assert handle.state_versions()["least_applies"] == 41
        assert (client.pull(table).wait() == parameters).all()
        assert client.pull_state(table, "exp_avg_sq").wait() == pytest.approx(0.004, rel=1e-4)
        with pytest.raises(verbena.InvalidArgumentError, match="it has: exp_avg, exp_avg_sq"):
            client.pull_state(table, "momentum_buffer")
        with pytest.raises(verbena.InvalidArgumentError, match="no state array ''"):
            client.assign_state(table, "", wanted, applies=1)
        with pytest.raises(verbena.InvalidArgumentError, match="of another call"):
            client.pull(table).state_versions()
    finally:
        client.drop_table("state-arrays")
    rows = client.table("state-rows", dim=4, optimizer="adam", rate=0.1)
    try:
        assert rows.state_arrays == ()
        with pytest.raises(ValueError, match="embedding table"):
            client.pull_state(rows, "exp_avg", np.zeros(4, "float32"))
    finally:
        client.drop_table("state-rows")
