"""What a program changes between the calls of a step: gradients, groups, batches and interrupts."""
import gc
import signal
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
import verbena.torch as vt  # noqa: E402: it needs torch
from torch_support import distributed, unique  # noqa: E402


@pytest.fixture
def make(client):
    return distributed(client)


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def two_parameters():
    named = [(name, torch.nn.Parameter(torch.zeros(2))) for name in "ab"]
    return named, [parameter for _, parameter in named]


def rows(client, name=None):
    return vt.Embedding(20, 4, client=client, name=name or unique("rows"), rate=0.5, init="zeros")


def train_row(module, optimizer):
    module(torch.tensor([1])).sum().backward()
    optimizer.step()
    return module.weight()[1, 0].item()


# ---- DistributedOptimizer -----------------------------------------------------------------------

def test_a_gradient_that_changed_before_its_push_counts(make):
    named, (a, b) = two_parameters()
    optimizer = make(named, torch.optim.SGD([a, b], lr=1), find_unused=True)
    (a * 10).sum().backward()  # b has none, so the bucket waits for step()
    a.grad.mul_(0.1)
    optimizer.step()
    assert a.tolist() == [-1, -1] and b.tolist() == [0, 0]


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("in backward")


@pytest.mark.parametrize("overlap", [True, False])
def test_zero_grad_begins_again_after_backward_has_raised(make, overlap):
    named, (a, b) = two_parameters()
    optimizer = make(named, torch.optim.SGD([a, b], lr=1), overlap=overlap)
    with pytest.raises(ArithmeticError):
        (Fails.apply(a * 1).sum() + b.sum()).backward()
    optimizer.zero_grad()
    (a.sum() + 2 * b.sum()).backward()
    optimizer.step()
    assert a.tolist() == [-1, -1] and b.tolist() == [-2, -2]


class Halves(torch.nn.Module):
    """The gradients of `last` are computed before the backward of `first` raises."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)
        self.fails = False

    def forward(self, x):
        hidden = self.first(x)
        return self.last(Fails.apply(hidden) if self.fails else hidden)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_backward_that_raised_after_a_push_is_repeated(make, deferred, set_to_none, passes):
    net, exact = Halves(), Halves()
    optimizer = make(net.named_parameters(), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
                     model=net if deferred else None, bucket_bytes=0, backward_passes_per_step=passes)
    local = torch.optim.SGD(exact.parameters(), lr=0.1, momentum=0.9)

    def backward(net, step, number):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(10 * step + number))
        net(x).square().mean().backward()

    for step in range(4):
        for number in range(passes):
            backward(exact, step, number)
        local.step()
        local.zero_grad()
        for fails in (True, True, False) if step in (1, 2) else (False,):
            optimizer.zero_grad(set_to_none=set_to_none)
            for number in range(passes):
                net.fails = fails and number == passes - 1
                if net.fails:
                    with pytest.raises(ArithmeticError):
                        backward(net, step, number)
                    assert any(bucket.pushed for bucket in optimizer._buckets)
                else:
                    backward(net, step, number)
        optimizer.step()
    optimizer.synchronize()
    for mine, other in zip(net.parameters(), exact.parameters()):
        assert torch.allclose(mine, other, atol=1e-6)


def test_zero_grad_withdraws_no_push_of_a_backward_that_ended(make):
    """The gradient of the second pass would be lost."""
    net = Halves()
    optimizer = make(net.named_parameters(), torch.optim.SGD(net.parameters(), lr=0.1))
    net(torch.ones(1, 3)).sum().backward()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="was pushed, and then another backward pass"):
        net(torch.ones(1, 3)).sum().backward()


def test_the_rate_of_a_later_run_holds_from_its_first_step(make):
    a = torch.nn.Parameter(torch.zeros(2))
    first = make([("a", a)], torch.optim.SGD([a], lr=1))
    first.param_groups[0]["lr"] = 0.5
    a.sum().backward()
    first.step()
    again = torch.nn.Parameter(torch.zeros(2))
    second = make([("a", again)], torch.optim.SGD([again], lr=1), resume=True)
    again.sum().backward()
    second.step()
    assert again.tolist() == [-1.5, -1.5]


def test_an_interrupted_step_is_finished_by_synchronize(connect):
    clients = [None, None]
    joins = [threading.Thread(target=lambda rank=rank: clients.__setitem__(
        rank, connect(expected_workers=2, rank=rank))) for rank in (0, 1)]
    for join in joins:
        join.start()
    for join in joins:
        join.join()
    models = [torch.nn.Parameter(torch.zeros(2)) for _ in clients]
    optimizers = [None, None]
    name = unique("interrupted")

    def construct(rank):
        optimizers[rank] = vt.DistributedOptimizer(
            [("a", models[rank])], torch.optim.SGD([models[rank]], lr=1), client=clients[rank],
            name=name)

    other = threading.Thread(target=construct, args=(1,))
    other.start()
    construct(0)
    other.join()
    models[0].sum().backward()
    interrupt = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        optimizers[0].step()  # the other worker has not made its step
    interrupt.join()
    models[1].sum().backward()
    optimizers[1].step()
    optimizers[0].synchronize()
    assert models[0].tolist() == models[1].tolist() == [-1, -1]


def test_a_parameter_that_was_frozen_at_first_is_refused(make):
    named, (a, b) = two_parameters()
    b.requires_grad_(False)
    optimizer = make(named, torch.optim.SGD([a, b], lr=1))
    b.requires_grad_(True)
    (a.sum() + b.sum()).backward()
    with pytest.raises(RuntimeError, match="'b' has a gradient and was frozen"):
        optimizer.step()


def test_a_model_keeps_no_optimizer_alive(make):
    net = torch.nn.Linear(2, 2)
    optimizer = make(net.named_parameters(), torch.optim.SGD(net.parameters(), lr=1), model=net)
    memory = weakref.ref(optimizer._buckets[0])
    before = net.weight.detach().clone()
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    del optimizer
    gc.collect()
    net(torch.ones(1, 2))  # it still waits for the step
    assert torch.equal(net.weight, before - 1)
    gc.collect()
    assert memory() is None


# ---- the forward that waits ---------------------------------------------------------------------

class Listed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ModuleDict(
            {"of": torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4))])})

    def forward(self, x):
        return x * self.weights["of"][0]


@pytest.mark.parametrize("net", [
    lambda: torch.nn.utils.weight_norm(torch.nn.Linear(4, 4)),
    lambda: torch.nn.TransformerEncoderLayer(4, 2, 4, dropout=0),
    Listed], ids=["weight_norm", "attention", "list"])
def test_a_module_that_uses_others_parameters_waits_for_them(make, net):
    torch.manual_seed(2)
    net = net()
    optimizer = make(net.named_parameters(), torch.optim.SGD(net.parameters(), lr=0.1), model=net,
                     bucket_bytes=0)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.rand(3, 1, 4)).pow(3).sum().backward()
        optimizer.step()
    optimizer.synchronize()
    assert not any(torch.equal(old, new) for old, new in zip(before, net.parameters()))


# ---- Embedding ----------------------------------------------------------------------------------

def test_a_batch_that_was_overwritten_before_backward_is_refused(client):
    module, keys = rows(client), torch.tensor([1, 2])
    loss = module(keys).sum()
    keys.copy_(torch.tensor([3, 4]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_that_were_overwritten_before_backward_are_refused(client):
    module = vt.EmbeddingBag(20, 4, client=client, name=unique("bags"), mode="sum")
    weights = torch.ones(1, 2)
    loss = module(torch.tensor([[1, 2]]), None, weights).sum()
    weights.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_group_reaches_the_servers_after_load_state_dict(client):
    module = rows(client)
    optimizer = vt.EmbeddingOptimizer([module])
    train_row(module, optimizer)
    saved = optimizer.state_dict()
    module = rows(client)
    optimizer = vt.EmbeddingOptimizer([module])
    optimizer.load_state_dict(saved)
    assert optimizer.state_dict() == saved and saved["steps"] == [1]
    optimizer.param_groups[0]["lr"] = 0.25
    assert train_row(module, optimizer) == -0.25


def test_the_rate_of_a_table_that_was_opened_again_holds_from_its_first_step(client):
    name = unique("rows")
    module = rows(client, name)
    optimizer = vt.EmbeddingOptimizer([module])
    optimizer.param_groups[0]["lr"] = 0.25
    assert train_row(module, optimizer) == -0.25
    module = rows(client, name)
    assert train_row(module, vt.EmbeddingOptimizer([module])) == -0.75


def test_a_refused_step_ends_no_step(client):
    modules = [rows(client), rows(client)]
    optimizer = vt.EmbeddingOptimizer(modules)
    sum(module(torch.tensor([1])).sum() for module in modules).backward()
    optimizer.param_groups[1]["lr"] = 0.1
    with pytest.raises(RuntimeError, match="were changed between"):
        optimizer.step()
    assert [module.weight()[1, 0].item() for module in modules] == [0, 0]
    optimizer.param_groups[1]["lr"] = 0.5
    optimizer.step()
    assert [module.weight()[1, 0].item() for module in modules] == [-0.5, -0.5]


def test_zero_grad_refuses_what_it_cannot_withdraw(client):
    module = rows(client)
    optimizer = vt.EmbeddingOptimizer([module])
    optimizer.zero_grad()
    module(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="cannot be withdrawn"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


# ---- torch.set_default_dtype() ------------------------------------------------------------------

def test_another_default_type_changes_nothing(client, float64):
    module = rows(client)
    assert module(torch.tensor([1])).dtype == torch.float32
    bags = vt.EmbeddingBag(20, 4, client=client, name=unique("bags"))
    assert bags(torch.tensor([[1]])).dtype == torch.float32
    vt.broadcast_parameters([("x", torch.ones(3, dtype=torch.float32))], client=client)
