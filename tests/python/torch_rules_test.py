"""The servers' optimizers compute the results of torch.optim in double precision, or refuse."""
import math

import pytest

torch = pytest.importorskip("torch")
from torch_support import distributed  # noqa: E402: it needs torch


@pytest.fixture
def make(client):
    return distributed(client)


STEPS = 500
TOLERANCE = 1e-5

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
Adagrad, RMSprop = torch.optim.Adagrad, torch.optim.RMSprop

CASES = [
    (SGD, {"lr": 0.05}),
    (SGD, {"lr": 0.05, "weight_decay": 0.01}),
    (SGD, {"lr": 0.01, "momentum": 0.9}),
    (SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01}),
    (SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (Adam, {"lr": 0.003}),
    (Adam, {"lr": 0.003, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.01}),
    (AdamW, {"lr": 0.003}),
    (AdamW, {"lr": 0.003, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.1}),
    (Adagrad, {"lr": 0.05}),
    (Adagrad, {"lr": 0.05, "lr_decay": 0.01, "weight_decay": 0.01, "eps": 1e-6}),
    (RMSprop, {"lr": 0.003}),
    (RMSprop, {"lr": 0.003, "alpha": 0.9, "eps": 1e-4, "weight_decay": 0.01}),
]


def gradients_at(weights, step):
    """The gradient of a problem that moves, in float32: both optimizers get the same bits."""
    generator = torch.Generator().manual_seed(step)
    noise = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
    scale = torch.logspace(-3, 1, weights.numel(), dtype=torch.float64).view(weights.shape)
    return (scale * (weights - 1) + 0.1 * scale * noise).float()


def compare(make, kind, options, scheduled):
    torch.manual_seed(3)
    start = torch.randn(7, 13)
    mine = torch.nn.Parameter(start.clone())
    exact = torch.nn.Parameter(start.double())
    reference = kind([exact], **options)
    served = make([("w", mine)], kind([mine], **options))
    schedulers = []
    if scheduled:
        for optimizer in (reference, served):
            schedulers.append(torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / STEPS)) + 0.01))
    for step in range(STEPS):
        gradient = gradients_at(exact.detach(), step)
        mine.grad, exact.grad = gradient.clone(), gradient.double()
        served.step()
        reference.step()
        for scheduler in schedulers:
            scheduler.step()
    moved = exact.detach() - start.double()
    return ((mine.detach().double() - start.double() - moved).norm() / moved.norm()).item()


@pytest.mark.parametrize("kind, options", CASES)
@pytest.mark.parametrize("scheduled", [False, True])
def test_equals_torch_in_double(make, kind, options, scheduled, record_property):
    error = compare(make, kind, options, scheduled)
    record_property("error", error)
    print(f"{kind.__name__} {options} scheduled={scheduled}: {error:.2e}")
    assert error < TOLERANCE


@pytest.mark.parametrize("kind, options, name", [
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, "dampening"),
    (SGD, {"lr": 0.1, "maximize": True}, "maximize"),
    (Adam, {"lr": 0.1, "amsgrad": True}, "amsgrad"),
    (AdamW, {"lr": 0.1, "amsgrad": True}, "amsgrad"),
    (Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}, "initial_accumulator_value"),
    (RMSprop, {"lr": 0.1, "momentum": 0.9}, "momentum"),
    (RMSprop, {"lr": 0.1, "centered": True}, "centered"),
])
def test_refuses_by_name(make, kind, options, name):
    parameter = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=name):
        make([("w", parameter)], kind([parameter], **options))


def test_refuses_other_classes(make):
    class Mine(SGD):
        pass

    parameter = torch.nn.Parameter(torch.zeros(3))
    for kind in (Mine, torch.optim.NAdam, torch.optim.Adadelta):
        with pytest.raises(TypeError, match=kind.__name__):
            make([("w", parameter)], kind([parameter], lr=0.1))
