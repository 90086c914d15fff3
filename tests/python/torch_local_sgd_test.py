"""DiLoCo and LocalSGD: a run that is saved and resumed, and rounds with too few workers."""
import pytest

torch = pytest.importorskip("torch")
import verbena.torch  # noqa: E402: after the check
from torch_support import unique  # noqa: E402

STEPS = 30


def make():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def train(net, inner, first, last):
    for step in range(first, last):
        data = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        inner.zero_grad()
        net(data).square().mean().backward()
        inner.step()


def diloco(client, net, inner, name, **options):
    return verbena.torch.DiLoCo([net[0], net[2]], inner, "nesterov", 10, fragment_sync_delay=2,
                                fragment_update_alpha=0.25, client=client, name=name, rate=0.7,
                                parameters={"momentum": 0.9}, **options)


def local_sgd(client, net, inner, name, **options):
    return verbena.torch.LocalSGD(net, inner, 10, client=client, name=name, **options)


@pytest.mark.parametrize("kind", [diloco, local_sgd])
@pytest.mark.parametrize("step", [0, 4, 10, 11, 17])
def test_resumed_equals_uninterrupted(client, kind, step):
    """Also with an exchange in flight (steps 10, 11 of DiLoCo)."""
    whole, inner = make()
    with kind(client, whole, inner, unique("whole")):
        train(whole, inner, 0, STEPS)
    first, inner = make()
    name = unique("resumed")
    with kind(client, first, inner, name) as exchange:
        train(first, inner, 0, step)
        saved = exchange.state_dict()
    net, inner = make()
    with kind(client, net, inner, name, resume=True) as exchange:
        exchange.load_state_dict(saved)
        train(net, inner, step, STEPS)
    for found, exact in zip(net.parameters(), whole.parameters()):
        assert torch.equal(found, exact)


def test_a_state_of_other_fragments_is_refused(client):
    net, inner = make()
    saved = diloco(client, net, inner, unique("a")).state_dict()
    with pytest.raises(ValueError, match="other fragments"):
        local_sgd(client, net, inner, unique("b")).load_state_dict(saved)


def test_too_few_workers(client):
    net, inner = make()
    with local_sgd(client, net, inner, unique("few"), min_workers=2, grace=0.2):
        train(net, inner, 0, 9)
        before = [p.detach().clone() for p in net.parameters()]
        with pytest.raises(verbena.torch.QuorumError, match="has 1 workers and min_workers is 2"):
            train(net, inner, 9, 10)
    assert not all(torch.equal(p, q) for p, q in zip(before, net.parameters()))
