"""Embedding and EmbeddingBag beside those of torch.nn in double precision."""
import pytest

torch = pytest.importorskip("torch")
import verbena.torch as vt  # noqa: E402: it needs torch
from torch_support import unique  # noqa: E402

ROWS, DIM, STEPS = 50, 8, 100
OPTIMIZERS = [
    ("sgd", torch.optim.SGD, {"lr": 0.05}, {}),
    ("adagrad", torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-3}, {"epsilon": 1e-3}),
    ("sparse_adam", torch.optim.SparseAdam, {"lr": 0.02, "betas": (0.8, 0.99), "eps": 1e-4},
     {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-4}),
]


def pair(client, kind, local_kind, optimizer, **options):
    """The module on servers, and one of torch.nn in double precision with the same rows."""
    name, local_optimizer, values, parameters = optimizer
    served = kind(ROWS, DIM, client=client, name=unique("rows"), optimizer=name, rate=values["lr"],
                  parameters=parameters, **options)
    sparse = options.get("mode") != "max"  # torch.nn has dense gradients only there
    local = local_kind(ROWS, DIM, sparse=sparse, dtype=torch.float64, **options)
    with torch.no_grad():
        local.weight.copy_(served.weight())
    return (served, vt.EmbeddingOptimizer([served]),
            local, local_optimizer(list(local.parameters()), **values))


def loss_of(vectors, step):
    generator = torch.Generator().manual_seed(step)
    target = torch.randn(vectors.shape, generator=generator, dtype=torch.float64)
    return (vectors - target.to(vectors.dtype)).tanh().pow(2).sum()


def error(served, local):
    exact = local.weight.detach()
    return ((served.weight().double() - exact).norm() / exact.norm()).item()


def train(steps, draw, *sides, scheduled=True):
    """Each step of all sides has the arguments of draw(generator, dtype)."""
    for module, optimizer in sides:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.01 * step))
        kind = torch.float32 if isinstance(module, (vt.Embedding, vt.EmbeddingBag)) else torch.float64
        for step in range(steps):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(step)
            loss_of(module(*draw(generator, kind)), step).backward()
            optimizer.step()
            if scheduled:
                scheduler.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o[0])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_embedding(client, optimizer, padding):
    served, mine, local, its = pair(client, vt.Embedding, torch.nn.Embedding, optimizer,
                                    padding_idx=padding)
    assert served.weight().std() == pytest.approx(1, abs=0.2)

    def draw(generator, _):  # repeated indices
        return (torch.randint(0, ROWS, (4, 9), generator=generator) // 2,)

    train(STEPS, draw, (served, mine), (local, its))
    found = error(served, local)
    print(f"{optimizer[0]} padding_idx={padding}: {found:.2e}")
    assert found < 1e-5
    assert served(torch.tensor([[1, 2]])).shape == (1, 2, DIM)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o[0])
@pytest.mark.parametrize("mode, weighted, padding, last", [
    ("sum", False, None, False), ("mean", False, None, True), ("sum", True, None, False),
    ("mean", False, 3, False), ("sum", True, 3, True)])
def test_bags(client, optimizer, mode, weighted, padding, last):
    served, mine, local, its = pair(client, vt.EmbeddingBag, torch.nn.EmbeddingBag, optimizer,
                                    mode=mode, padding_idx=padding, include_last_offset=last)

    def draw(generator, kind):
        keys = torch.randint(0, ROWS, (20,), generator=generator) // 3
        offsets = torch.tensor([0, 0, 5, 6, 6, 17, 20])  # the first, the fourth and the last are empty
        weights = torch.rand(20, generator=generator).to(kind) if weighted else None
        return keys, offsets, weights

    train(STEPS, draw, (served, mine), (local, its))
    found = error(served, local)
    print(f"{optimizer[0]} {mode} weighted={weighted} padding_idx={padding}: {found:.2e}")
    assert found < 1e-5
    if not last:
        assert not served(*draw(torch.Generator(), torch.float32)).detach()[[0, 3, 6]].any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:2], ids=lambda o: o[0])
@pytest.mark.parametrize("padding", [None, 3])
def test_greatest_of_bags(client, optimizer, padding):
    served, mine, local, its = pair(client, vt.EmbeddingBag, torch.nn.EmbeddingBag, optimizer,
                                    mode="max", padding_idx=padding)

    def draw(generator, _):
        keys = torch.randint(0, ROWS, (20,), generator=generator) // 3
        return keys, torch.tensor([0, 0, 5, 6, 6, 17, 20])

    train(STEPS, draw, (served, mine), (local, its))
    found = error(served, local)
    print(f"{optimizer[0]} max padding_idx={padding}: {found:.2e}")
    assert found < 1e-5
    assert not served(*draw(torch.Generator(), None)).detach()[[0, 3, 6]].any()


def test_bags_of_one_length(client):
    served, _, local, _ = pair(client, vt.EmbeddingBag, torch.nn.EmbeddingBag, OPTIMIZERS[0])
    keys = torch.randint(0, ROWS, (5, 4), dtype=torch.int32)
    assert torch.allclose(served(keys).double(), local(keys))


def test_gradients_of_weights(client):
    served, mine, local, its = pair(client, vt.EmbeddingBag, torch.nn.EmbeddingBag, OPTIMIZERS[0],
                                    mode="sum")
    keys, offsets = torch.tensor([4, 4, 9, 2]), torch.tensor([0, 3])
    gradients = []
    for module, optimizer, kind in ((served, mine, torch.float32), (local, its, torch.float64)):
        weights = torch.tensor([0.5, 2, -1, 0], dtype=kind, requires_grad=True)
        loss_of(module(keys, offsets, weights), 0).backward()
        optimizer.step()
        gradients.append(weights.grad.double())
    assert torch.allclose(*gradients, rtol=1e-5)
    assert error(served, local) < 1e-6


def test_two_uses_in_a_step(client):
    served, mine, local, its = pair(client, vt.Embedding, torch.nn.Embedding, OPTIMIZERS[1])
    for module, optimizer in ((served, mine), (local, its)):
        (loss_of(module(torch.tensor([1, 2])), 0) + loss_of(module(torch.tensor([2, 3])), 1)).backward()
        optimizer.step()
    assert error(served, local) < 1e-6


def test_no_gradient_without_autograd(client):
    served, mine, _, _ = pair(client, vt.Embedding, torch.nn.Embedding, OPTIMIZERS[0])
    before = served.weight()
    with torch.no_grad():
        assert not served(torch.tensor([1])).requires_grad
    assert served(torch.tensor([], dtype=torch.int64)).shape == (0, DIM)
    mine.step()
    assert torch.equal(before, served.weight())


def test_weights_are_saved_and_loaded(client):
    served, mine, local, _ = pair(client, vt.Embedding, torch.nn.Embedding, OPTIMIZERS[2], padding_idx=4)
    other, its, _, _ = pair(client, vt.Embedding, torch.nn.Embedding, OPTIMIZERS[2], padding_idx=4)
    torch.nn.init.normal_(local.weight)
    with torch.no_grad():
        local.weight[4] = 0
    saved = local.state_dict()
    served.load_state_dict(saved)
    assert torch.equal(served.weight(), local.weight.detach().float())
    other.load_state_dict(served.state_dict())

    def draw(generator, _):
        return (torch.randint(0, ROWS, (9,), generator=generator),)

    train(5, draw, (served, mine), (other, its))
    assert torch.equal(served.weight(), other.weight())
    saved["weight"][4] = 1
    with pytest.raises(RuntimeError, match="padding_idx"):
        served.load_state_dict(saved)


def test_batches_are_announced_ahead(client):
    rows, _, _, _ = pair(client, vt.Embedding, torch.nn.Embedding, OPTIMIZERS[0])
    seen = []

    def announce(batch):
        rows.prefetch(batch)
        seen.append(("next", int(batch)))

    for batch in vt.prefetch_batches([torch.tensor(i) for i in range(3)], announce):
        seen.append(("now", int(batch)))
    assert seen == [("next", 1), ("now", 0), ("next", 2), ("now", 1), ("now", 2)]
    assert not list(vt.prefetch_batches([], announce))


def test_late_rates_are_refused(client):
    served, mine, _, _ = pair(client, vt.Embedding, torch.nn.Embedding, OPTIMIZERS[0])
    served(torch.tensor([1])).sum().backward()
    mine.param_groups[0]["lr"] = 9
    with pytest.raises(RuntimeError, match="changed between"):
        mine.step()


def test_wrong_arguments(client):
    def make(kind=vt.Embedding, **options):
        return kind(ROWS, DIM, client=client, name=unique("wrong"), **options)

    for options, name in (({"max_norm": 1.0}, "max_norm"), ({"sparse": False}, "sparse"),
                          ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
                          ({"padding_idx": ROWS}, "padding_idx")):
        with pytest.raises(ValueError, match=name):
            make(**options)
    with pytest.raises(ValueError, match="mode is 'min'"):
        make(vt.EmbeddingBag, mode="min")
    rows, bags = make(), make(vt.EmbeddingBag)
    with pytest.raises(IndexError, match=f"index {ROWS}"):
        rows(torch.tensor([ROWS]))
    with pytest.raises(IndexError, match="index -1"):
        rows(torch.tensor([-1]))
    with pytest.raises(TypeError, match="float32"):
        rows(torch.tensor([1.0]))
    with pytest.raises(ValueError, match="weight has the shape"):
        rows.assign_weight(torch.zeros(3, 3))
    keys = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="offsets"):
        bags(keys)
    with pytest.raises(ValueError, match="ascend"):
        bags(keys, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="two dimensions"):
        bags(keys.view(1, 2), torch.tensor([0]))
    last = make(vt.EmbeddingBag, include_last_offset=True)
    for offsets in ([0, 1], [0, 3], []):
        with pytest.raises(ValueError, match="offsets ends with another number than 2, .*include_last_offset"):
            last(keys, torch.tensor(offsets, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="'mean'"):
        bags(keys, torch.tensor([0]), torch.ones(2))
