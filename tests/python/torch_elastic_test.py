"""A worker joins the run of a DistributedOptimizer; helpers that cannot work there are refused."""
import concurrent.futures

import pytest

torch = pytest.importorskip("torch")
import verbena.torch  # noqa: E402: after the check
from torch_support import unique  # noqa: E402

RATE = 0.1


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def optimizer_of(net):
    return torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)


def loss_of(net, worker, step):
    """Of this worker's batch of the step."""
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + worker))
    return net(inputs).square().mean()


def train_step(net, optimizer, worker, step):
    optimizer.zero_grad()
    loss_of(net, worker, step).backward()
    optimizer.step()


def equal(net, other):
    return all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters()))


def test_a_worker_joins_a_run_and_leaves_it(connect):
    options = {"expected_workers": 1, "max_workers": 2}
    name = unique("joins")
    first, net = connect(**options), model()
    optimizer = verbena.torch.DistributedOptimizer(
        net.named_parameters(), optimizer_of(net), client=first, name=name)
    members = []  # of each step
    for _ in range(3):
        train_step(net, optimizer, 0, optimizer.steps)
        members.append([0])
    second, other = connect(**options), model()
    with torch.no_grad():
        other[0].weight.zero_()  # it gets the servers' parameters
    table = second.open_table(next(iter(optimizer.layout())))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        making = pool.submit(verbena.torch.DistributedOptimizer, other.named_parameters(),
                             optimizer_of(other), client=second, name=name)
        while optimizer.steps + 1 < second.first_step(table):
            train_step(net, optimizer, 0, optimizer.steps)
            members.append([0])
        joined = making.result(60)
        assert joined.steps == optimizer.steps
        assert equal(net, other)
        for _ in range(3):
            steps = [pool.submit(train_step, net, optimizer, 0, optimizer.steps),
                     pool.submit(train_step, other, joined, 1, joined.steps)]
            for step in steps:
                step.result(60)
            members.append([0, 1])
        assert equal(net, other)
        second.close()
        train_step(net, optimizer, 0, optimizer.steps)
        members.append([0])
    reference = model()
    local = optimizer_of(reference)
    for step, workers in enumerate(members):
        local.zero_grad()
        (sum(loss_of(reference, worker, step) for worker in workers) / len(workers)).backward()
        local.step()
    for mine, exact in zip(net.parameters(), reference.parameters()):
        assert torch.allclose(mine, exact, atol=1e-6)


EVERY = 4  # steps of a round
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


def diloco(net, client, name):
    """A worker of DiLoCo, and its inner optimizer."""
    inner = optimizer_of(net)
    exchange = verbena.torch.DiLoCo([net], inner, torch.optim.SGD(net.parameters(), **OUTER), EVERY,
                                    client=client, name=name, chunk_bytes=256)
    return exchange.__enter__(), inner


def train_round(net, inner, worker, first):
    for step in range(first, first + EVERY):
        train_step(net, inner, worker, step)


def simulate_rounds(rounds):
    """The parameters after rounds of these workers, in one process."""
    shared = model()
    outer = torch.optim.SGD(shared.parameters(), **OUTER)
    nets = {}
    for number, workers in enumerate(rounds):
        outer.zero_grad(set_to_none=True)
        for worker in workers:
            if worker not in nets:
                net = model()
                net.load_state_dict(shared.state_dict())
                nets[worker] = net, optimizer_of(net)
            train_round(*nets[worker], worker, number * EVERY)
        for p, *others in zip(shared.parameters(), *(nets[w][0].parameters() for w in workers)):
            p.grad = sum((p - other).detach() for other in others) / len(others)
        outer.step()
        for net, _ in nets.values():
            net.load_state_dict(shared.state_dict())
    return shared


def test_a_worker_joins_a_run_of_diloco_and_leaves_it(connect):
    options = {"expected_workers": 1, "max_workers": 2}
    name = unique("diloco")
    first, net = connect(**options), model()
    exchange, inner = diloco(net, first, name)
    rounds = []  # the workers of each
    for _ in range(3):
        train_round(net, inner, 0, exchange.steps)
        rounds.append([0])
    second, other = connect(**options), model()
    with torch.no_grad():
        other[0].weight.zero_()  # it gets the servers' parameters
    table = second.open_table(f"{name}/0/0.0")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        making = pool.submit(diloco, other, second, name)
        while len(rounds) + 1 < second.first_step(table):
            train_round(net, inner, 0, exchange.steps)
            rounds.append([0])
        joined, its_inner = making.result(60)
        assert joined.steps == exchange.steps == EVERY * len(rounds)
        assert equal(net, other)
        for _ in range(3):
            started = [pool.submit(train_round, net, inner, 0, exchange.steps),
                       pool.submit(train_round, other, its_inner, 1, joined.steps)]
            for each in started:
                each.result(60)
            rounds.append([0, 1])
            assert equal(net, other)
        second.close()
        train_round(net, inner, 0, exchange.steps)
        rounds.append([0])
    for mine, exact in zip(net.parameters(), simulate_rounds(rounds).parameters()):
        assert torch.allclose(mine, exact, atol=1e-6)


def test_fragments_are_refused_in_an_elastic_job(connect):
    client, net = connect(expected_workers=1, max_workers=2), model()
    with pytest.raises(ValueError, match="2 fragments; allowed in an elastic job.*: 1"):
        verbena.torch.DiLoCo([net[0], net[2]], optimizer_of(net), "sgd", 2, rate=1, client=client)


def test_helpers_of_all_workers_are_refused(connect):
    client, net = connect(expected_workers=1, max_workers=2), model()
    with pytest.raises(RuntimeError, match="not in an elastic job"):
        verbena.torch.DistributedOptimizer(net.named_parameters(), optimizer_of(net), client=client,
                                           consistency="async", name=unique("async"))
    with pytest.raises(RuntimeError, match="not in an elastic job"):
        verbena.torch.broadcast_parameters(net.state_dict(), client=client, name=unique("all"))
