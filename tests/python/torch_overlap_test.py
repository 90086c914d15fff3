"""Pushes and pulls of DistributedOptimizer beside backward and the next forward, by events.

Rank 0 trains; the test makes the pushes of rank 1, so that it decides which parameters arrive.
"""
import concurrent.futures

import pytest

torch = pytest.importorskip("torch")
import verbena.torch  # noqa: E402: after the check
from torch_support import unique  # noqa: E402: it needs torch

RATE = 0.5


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class Pair:
    """Two workers with a table for each parameter."""

    def __init__(self, connect):
        self.clients = [connect(rank=rank, expected_workers=2) for rank in range(2)]
        self.nets = [Net() for _ in range(2)]
        name = unique("overlap")

        def make(rank):
            net = self.nets[rank]
            return verbena.torch.DistributedOptimizer(
                net.named_parameters(), torch.optim.SGD(net.parameters(), lr=RATE),
                client=self.clients[rank], name=name, model=net, bucket_bytes=0)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:  # the constructor waits for both
            self.optimizers = list(pool.map(make, range(2)))

    def buckets(self, rank, layer):
        return [b for b in self.optimizers[rank]._buckets if f"/{layer}." in b.name]

    def push_rank_1(self, layer):
        """Pushes zeros for a layer."""
        for bucket in self.buckets(1, layer):
            self.clients[1].push_pull(bucket.table, bucket.gradient, bucket.parameters)

    def arrived(self, layer):
        """Whether the parameters of the layer have been pulled at rank 0."""
        return all(b.handles and all(h.is_completed() for h in b.handles)
                   for b in self.buckets(0, layer))


@pytest.fixture
def pair(connect):
    return Pair(connect)


def loss_of(net):
    return net(torch.ones(4, 8)).square().sum()


def test_the_first_forward_begins_before_the_last_parameters_have_arrived(pair):
    net, optimizer = pair.nets[0], pair.optimizers[0]
    loss_of(net).backward()
    before = net.last.weight.detach().clone()
    optimizer.step()
    pair.push_rank_1("first")  # of the last layer there is no new version yet
    seen = []

    def first_has_run(*_):
        seen.append(pair.arrived("last"))
        pair.push_rank_1("last")

    hook = net.first.register_forward_hook(first_has_run)
    gradient = net.last.weight.grad.clone()
    net(torch.ones(4, 8))  # the last layer waits for its own parameters
    hook.remove()
    assert seen == [False]
    assert torch.allclose(net.last.weight, before - RATE * gradient / 2)  # the mean with zeros
    communication = optimizer.communication
    assert communication.exposed > 0 and communication.copies > 0
    assert communication.in_flight > 0 and communication.hidden >= 0


def test_the_last_parameters_arrive_while_backward_goes_on(pair):
    net = pair.nets[0]
    seen = []
    hidden = torch.tanh(net.first(torch.ones(4, 8)))

    def backward_is_at_the_first_layer(_):
        pair.push_rank_1("last")
        for bucket in pair.buckets(0, "last"):
            for handle in bucket.handles:
                handle.wait()
        seen.append((pair.arrived("last"), net.first.weight.grad))

    hidden.register_hook(backward_is_at_the_first_layer)
    net.last(hidden).square().sum().backward()
    assert seen == [(True, None)]
    pair.push_rank_1("first")
    pair.optimizers[0].step()
    pair.optimizers[0].synchronize()


def test_the_first_layer_has_the_greatest_priority(connect, monkeypatch):
    priorities = {}
    client = connect()
    monkeypatch.setattr(client, "set_priority", lambda table, priority: priorities.update({table.name: priority}))
    net = Net()
    optimizer = verbena.torch.DistributedOptimizer(
        net.named_parameters(), "sgd", rate=RATE, client=client, name=unique("order"), bucket_bytes=0)
    order = sorted(priorities, key=priorities.get, reverse=True)
    parameters = [optimizer.layout()[name][0][0] for name in order]
    assert parameters == [name for name, _ in net.named_parameters()]
