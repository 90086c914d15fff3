"""DistributedOptimizer beside torch.optim on one worker: groups, hooks, schedulers and refusals."""
import copy

import pytest

torch = pytest.importorskip("torch")
import verbena  # noqa: E402: after the check
from torch_support import distributed  # noqa: E402: it needs torch

F = torch.nn.functional


@pytest.fixture
def make(client):
    return distributed(client)


class Net(torch.nn.Module):
    """Shared weights (first, again), a frozen layer, and one that forward() uses on request."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.again = torch.nn.Linear(8, 8, bias=False)
        self.again.weight = self.first.weight
        self.frozen = torch.nn.Linear(8, 8)
        self.extra = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x, extra=True):
        x = torch.tanh(self.again(torch.tanh(self.first(x))))
        x = torch.tanh(self.frozen(x))
        return self.last(torch.tanh(self.extra(x)) if extra else x)


@pytest.fixture
def pair():
    """A model, and the same in double precision."""
    torch.manual_seed(5)
    net = Net()
    return net, copy.deepcopy(net).double()


def batches(count):
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        yield (torch.randn(16, 8, generator=generator),
               torch.randint(0, 3, (16,), generator=generator))


def train(model, optimizer, steps, scheduler=None, **forward):
    kind = next(model.parameters()).dtype
    for x, y in batches(steps):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x.to(kind), **forward), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def error(model, exact):
    worst = 0.0
    for (name, p), q in zip(model.named_parameters(), exact.parameters()):
        worst = max(worst, ((p.double() - q).norm() / q.norm()).item())
    return worst


def groups(net):
    biases = [p for name, p in net.named_parameters() if "bias" in name and p.requires_grad]
    others = [p for name, p in net.named_parameters() if "bias" not in name and p.requires_grad]
    return [{"params": others, "lr": 0.01, "weight_decay": 0.1}, {"params": biases, "lr": 0.03}]


@pytest.mark.parametrize("bucket_bytes", [0, 300, 1 << 20])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
def test_groups_and_a_scheduler(make, pair, bucket_bytes, overlap, deferred):
    net, exact = pair
    served = make(
        net.named_parameters(), torch.optim.AdamW(groups(net)),
        bucket_bytes=bucket_bytes, overlap=overlap, model=net if deferred else None)
    local = torch.optim.AdamW(groups(exact))
    for model, optimizer in ((net, served), (exact, local)):
        train(model, optimizer, 40, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40))
    served.synchronize()
    assert error(net, exact) < 1e-5


def test_buckets(make, pair):
    net, _ = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)), bucket_bytes=600)
    layout = served.layout()
    assert [[name for name, _, _ in parts] for parts in layout.values()] == [
        ["last.weight", "extra.weight"], ["first.weight"],  # again.weight is the same one
        ["last.bias", "extra.bias", "first.bias"]]
    assert list(layout.values())[0][1] == ("extra.weight", 24, (8, 8))


def test_hyperparameters_change_while_it_trains(make, pair):
    net, exact = pair
    served = make(
        net.named_parameters(), torch.optim.SGD(groups(net), momentum=0.9))
    local = torch.optim.SGD(groups(exact), momentum=0.9)
    for model, optimizer in ((net, served), (exact, local)):
        train(model, optimizer, 5)
        for group in optimizer.param_groups:
            group["momentum"], group["weight_decay"] = 0.5, 0.02
        train(model, optimizer, 5)
    assert error(net, exact) < 1e-5


@pytest.mark.parametrize("to_none", [False, True])
def test_gradients_are_accumulated(make, pair, to_none):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.Adam(groups(net)), backward_passes_per_step=3)
    local = torch.optim.Adam(groups(exact))
    for model, optimizer in ((net, served), (exact, local)):
        kind = next(model.parameters()).dtype
        for number, (x, y) in enumerate(batches(30)):
            (F.cross_entropy(model(x.to(kind)), y) / 3).backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=to_none)
    assert error(net, exact) < 1e-5


def test_a_closure(make, pair):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)))
    local = torch.optim.SGD(groups(exact))
    losses = []
    for model, optimizer in ((net, served), (exact, local)):
        kind = next(model.parameters()).dtype
        x, y = next(batches(1))

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(kind)), y)
            loss.backward()
            return loss
        losses.append(float(optimizer.step(closure)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert error(net, exact) < 1e-5


def test_clipping_by_global_norm(make, pair):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)), bucket_bytes=300,
                  clip_global_norm=0.1)
    local = torch.optim.SGD(groups(exact))
    train(net, served, 20)
    norms = []
    for x, y in batches(20):
        local.zero_grad()
        F.cross_entropy(exact(x.double()), y).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(exact.parameters(), 0.1))
        local.step()
    assert min(norms) < 0.1 < max(norms)
    assert error(net, exact) < 1e-5


def test_local_clipping_needs_no_overlap(make, pair):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)), overlap=False)
    local = torch.optim.SGD(groups(exact))
    for model, optimizer in ((net, served), (exact, local)):
        kind = next(model.parameters()).dtype
        for x, y in batches(20):
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(kind)), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
    assert error(net, exact) < 1e-5


def test_late_changes_are_refused(make, pair):
    net, _ = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)))
    x, y = next(batches(1))
    F.cross_entropy(net(x), y).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    with pytest.raises(RuntimeError, match="overlap=False"):
        served.step()


def test_a_late_rate_is_refused(make, pair):
    net, _ = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)))
    x, y = next(batches(1))
    F.cross_entropy(net(x), y).backward()
    served.param_groups[0]["lr"] = 1.0
    with pytest.raises(RuntimeError, match=r"param_groups\[0\]"):
        served.step()


def test_a_second_backward_is_refused(make, pair):
    net, _ = pair
    optimizer = make(net.named_parameters(), torch.optim.SGD(groups(net)))
    x, y = next(batches(1))
    F.cross_entropy(net(x), y).backward()
    with pytest.raises(RuntimeError, match="backward_passes_per_step"):
        F.cross_entropy(net(x), y).backward()
    assert optimizer is not None


def test_unused_parameters(make, pair):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)), name="strict")
    with pytest.raises(RuntimeError, match="'extra.bias'|'extra.weight'"):
        train(net, served, 1, extra=False)
    served = make(net.named_parameters(), torch.optim.SGD(groups(net), momentum=0.9),
                  find_unused=True, name="lenient")
    local = torch.optim.SGD(groups(exact), momentum=0.9)
    train(net, served, 10)
    train(net, served, 10, extra=False)
    train(exact, local, 10)
    for x, y in batches(10):  # with zeros where torch.optim has nothing
        local.zero_grad(set_to_none=False)
        F.cross_entropy(exact(x.double(), extra=False), y).backward()
        local.step()
    assert error(net, exact) < 1e-5


def test_a_module_that_uses_the_parameters_of_another(make, pair):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 3)

        def forward(self, x):
            return F.linear(x, self.inner.weight, self.inner.bias)

    net = Tied()
    served = make(net.named_parameters(), "sgd", rate=0.1, model=net)
    with pytest.raises(RuntimeError, match="synchronize"):
        train(net, served, 3)


class Scaler:
    """torch.cuda.amp.GradScaler on a CPU, as far as step() sees it; that of 1.13 needs CUDA."""

    class Ready:
        value = 0

    def __init__(self, scale):
        self.scale = scale
        self._per_optimizer_states = {}

    def unscale_(self, optimizer):
        found = torch.zeros(1)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= self.scale
                found += not bool(torch.isfinite(p.grad).all())
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {"cpu": found}

    def step(self, optimizer):
        assert optimizer._step_supports_amp_scaling
        self._per_optimizer_states[id(optimizer)] = {"stage": Scaler.Ready}
        optimizer.step(grad_scaler=self)


def test_a_grad_scaler(make, pair):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net), momentum=0.9), overlap=False)
    local = torch.optim.SGD(groups(exact), momentum=0.9)
    scaler = Scaler(1024)
    for number, (x, y) in enumerate(batches(20)):
        served.zero_grad()
        (F.cross_entropy(net(x), y) * scaler.scale * (float("inf") if number % 5 == 4 else 1)).backward()
        scaler.step(served)
        if number % 5 != 4:  # those steps are skipped
            local.zero_grad()
            F.cross_entropy(exact(x.double()), y).backward()
            local.step()
    assert error(net, exact) < 1e-5


def test_a_grad_scaler_needs_no_overlap(make, pair):
    net, _ = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)))
    x, y = next(batches(1))
    F.cross_entropy(net(x), y).backward()
    with pytest.raises(RuntimeError, match="overlap=False"):
        Scaler(2).step(served)


@pytest.mark.parametrize("consistency", [
    {"consistency": "async"}, {"consistency": "ssp", "staleness": 1}])
def test_async_and_ssp(make, pair, consistency):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.Adam(groups(net)), bucket_bytes=300,
                  **consistency)
    local = torch.optim.Adam(groups(exact))
    train(net, served, 20)
    train(exact, local, 20)
    assert error(net, exact) < 1e-5  # one worker: pushes are applied in its order


def test_a_nan_is_refused_and_training_goes_on(make, pair):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)))
    x, y = next(batches(1))
    (F.cross_entropy(net(x), y) * float("nan")).backward()
    with pytest.raises(verbena.InvalidArgumentError, match="NaN"):
        served.step()
    served.pull_parameters()
    train(net, served, 10)
    local = torch.optim.SGD(groups(exact))
    for p in exact.parameters():  # a refused gradient counts as zero
        p.grad = torch.zeros_like(p)
    local.step()
    train(exact, local, 10)
    assert error(net, exact) < 1e-5


def test_compression(make, pair):
    net, exact = pair
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)), compression="int8")
    local = torch.optim.SGD(groups(exact))
    train(net, served, 20)
    train(exact, local, 20)
    assert 1e-7 < error(net, exact) < 1e-2


def test_lamb_has_a_table_for_each_parameter(make, pair):
    net, _ = pair
    served = make(net.named_parameters(), "lamb", rate=0.01, parameters={"weight_decay": 0.1})
    train(net, served, 3)
    assert [len(parts) for parts in served.layout().values()] == [1] * 6


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_16_bits_train_on_masters(make, kind):
    weight = torch.nn.Parameter(torch.ones(64, dtype=kind))
    served = make([("w", weight)], "sgd", rate=2 ** -12)
    for _ in range(256):  # each step alone is less than half a unit in the last place
        weight.grad = torch.ones_like(weight)
        served.step()
    assert weight.detach().float() == pytest.approx(1 - 256 / 4096)


def test_state_is_saved_and_loaded(make, pair):
    net, other = pair
    other.float()
    served = make(net.named_parameters(), torch.optim.SGD(groups(net)), name="saved")
    train(net, served, 5)
    served.param_groups[0]["lr"] = 0.5
    saved = served.state_dict()
    train(net, served, 5)
    loaded = make(other.named_parameters(), torch.optim.SGD(groups(other)), name="loaded")
    loaded.load_state_dict(saved)
    served.load_state_dict(saved)
    assert loaded.param_groups[0]["lr"] == 0.5
    train(net, served, 5)
    train(other, loaded, 5)
    for p, q in zip(net.parameters(), other.parameters()):
        assert torch.equal(p, q)
    with pytest.raises(ValueError, match="'first.bias'"):
        loaded.load_state_dict({**saved, "parameters": {k: v for k, v in saved["parameters"].items()
                                                        if k != "first.bias"}})


def test_tables_are_resumed(connect, pair):
    net, again = pair
    client = connect()
    make = distributed(client)
    train(net, make(net.named_parameters(), torch.optim.Adam(groups(net))), 5)
    client.close()
    again.float()
    served = make(again.named_parameters(), torch.optim.Adam(groups(again)),
                  client=connect(), resume=True)
    for p, q in zip(net.parameters(), again.parameters()):
        assert torch.equal(p, q)
    train(again, served, 1)


def test_wrong_arguments(make):
    parameter = torch.nn.Parameter(torch.zeros(3))
    named = [("w", parameter)]
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with pytest.raises(ValueError, match="rate is None"):
        make(named, "sgd")
    with pytest.raises(ValueError, match="has its own"):
        make(named, optimizer, rate=1)
    with pytest.raises(ValueError, match="consistency is 'some'"):
        make(named, optimizer, consistency="some")
    with pytest.raises(ValueError, match="backward_passes_per_step is 0"):
        make(named, optimizer, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="twice"):
        make(named + named, optimizer)
    with pytest.raises(ValueError, match="no param group"):
        make(named + [("v", torch.nn.Parameter(torch.zeros(1)))], optimizer)
    with pytest.raises(ValueError, match="named_parameters lacks"):
        make([], optimizer)
    with pytest.raises(TypeError, match="float64"):
        make([("w", torch.nn.Parameter(torch.zeros(3).double()))], "sgd", rate=1)
    made = make(named, optimizer)
    with pytest.raises(NotImplementedError):
        made.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    sparse = make(embedding.named_parameters(), "sgd", rate=1, name="sparse")
    with pytest.raises(TypeError, match="sparse"):
        embedding(torch.tensor([1])).sum().backward()
        sparse.step()
