"""The servers' optimizers in terms of torch.optim.

rule_of() maps a param group of a torch.optim optimizer to the optimizer of a table. The formulas
are equal; a hyperparameter that no server optimizer has is refused by name.

| torch.optim | server | refused |
|---|---|---|
| SGD | sgd, momentum, nesterov | dampening, maximize |
| Adam | adam | amsgrad, maximize |
| AdamW | adamw | amsgrad, maximize |
| Adagrad (lr_decay by the rate of each step) | adagrad | initial_accumulator_value, maximize |
| RMSprop | rmsprop | momentum, centered, maximize |

Options that select an implementation (foreach, fused, capturable, differentiable) have no effect.

"sparse_adam" is torch.optim.SparseAdam for rows: adam without the servers' bias correction, which
counts the gradients of a row; SparseAdam counts steps, so the rate of each step has the correction.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Tuple, Type

import torch


@dataclass(frozen=True)
class Rule:
    """A table's optimizer, with the values of one step."""

    optimizer: str
    """Name of the optimizer, such as "adam"."""
    rate: float
    """Learning rate."""
    parameters: Mapping[str, float]
    """Named parameters, such as {"beta1": 0.9}."""


def _refuse(name: str, group: Mapping[str, Any], *unsupported: str) -> None:
    for option in unsupported + ("maximize",):
        if group.get(option):
            hint = "negate the loss" if option == "maximize" else "use a local torch.optim optimizer"
            raise ValueError(f"torch.optim.{name}: {option} is {group[option]!r}; the servers' "
                             f"optimizers have no {option}. Set it to its default, or {hint}")


def _sgd(group: Mapping[str, Any], step: int) -> Rule:
    _refuse("SGD", group, "dampening")
    parameters = {"weight_decay": float(group["weight_decay"])}
    if not group["momentum"]:
        return Rule("sgd", float(group["lr"]), parameters)
    parameters["momentum"] = float(group["momentum"])
    return Rule("nesterov" if group["nesterov"] else "momentum", float(group["lr"]), parameters)


def _adam_as(server: str, name: str) -> Callable[[Mapping[str, Any], int], Rule]:
    def rule(group: Mapping[str, Any], step: int) -> Rule:
        _refuse(name, group, "amsgrad")
        beta1, beta2 = group["betas"]
        return Rule(server, float(group["lr"]), {
            "beta1": float(beta1), "beta2": float(beta2), "epsilon": float(group["eps"]),
            "weight_decay": float(group["weight_decay"])})
    return rule


def _adagrad(group: Mapping[str, Any], step: int) -> Rule:
    _refuse("Adagrad", group, "initial_accumulator_value")
    rate = float(group["lr"]) / (1 + step * float(group["lr_decay"]))
    return Rule("adagrad", rate, {"epsilon": float(group["eps"]),
                                  "weight_decay": float(group["weight_decay"])})


def _rmsprop(group: Mapping[str, Any], step: int) -> Rule:
    _refuse("RMSprop", group, "momentum", "centered")
    return Rule("rmsprop", float(group["lr"]), {
        "decay": float(group["alpha"]), "epsilon": float(group["eps"]),
        "weight_decay": float(group["weight_decay"])})


_RULES: Dict[Type[torch.optim.Optimizer], Callable[[Mapping[str, Any], int], Rule]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam_as("adam", "Adam"),
    torch.optim.AdamW: _adam_as("adamw", "AdamW"),
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
}


def _sparse_adam(group: Mapping[str, Any], step: int) -> Rule:
    values = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, **_parameters(group)}
    correction = math.sqrt(1 - values["beta2"] ** (step + 1)) / (1 - values["beta1"] ** (step + 1))
    return Rule("adam", float(group["lr"]) * correction, {**values, "bias_correction": 0.0})


# Keys of a param group that are no parameters of a server's optimizer.
_OF_GROUPS = ("params", "lr", "initial_lr")


def _parameters(group: Mapping[str, Any]) -> Dict[str, float]:
    return {key: float(value) for key, value in group.items() if key not in _OF_GROUPS}


def rule_of(optimizer: "torch.optim.Optimizer | str", group: Mapping[str, Any], step: int) -> Rule:
    """The rule of a param group.

    optimizer: an instance of torch.optim, of exactly a class above, since a subclass may compute
        something else; or the name of a server's optimizer or "sparse_adam", whose named parameters
        are keys of the group.
    group: the param group; "lr" is the rate.
    step: number of steps before this one.

    Raises TypeError for another class, ValueError for a hyperparameter that is refused.
    """
    if optimizer == "sparse_adam":
        return _sparse_adam(group, step)
    if isinstance(optimizer, str):
        return Rule(optimizer, float(group["lr"]), _parameters(group))
    rule = _RULES.get(type(optimizer))
    if rule is None:
        allowed = ", ".join(kind.__name__ for kind in _RULES)
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; allowed: exactly {allowed} of "
                        "torch.optim, or the name of a server's optimizer (docs/optimizers.md)")
    return rule(group, step)


def unknown(rule: Rule) -> Rule:
    """The same optimizer with values that differ from every rule: those of a table just opened."""
    return Rule(rule.optimizer, math.nan, {})


def changes(old: Rule, new: Rule) -> "Tuple[float | None, Dict[str, float]]":
    """The rate (None: it is the same) and the named parameters that differ.

    Raises ValueError if they are rules of different optimizers: a table keeps its own.
    """
    if old.optimizer != new.optimizer:
        raise ValueError(f"the param group asks for {new.optimizer!r} and its tables have "
                         f"{old.optimizer!r}; momentum and nesterov cannot be turned on or off")
    rate = None if old.rate == new.rate else new.rate
    return rate, {name: value for name, value in new.parameters.items()
                  if old.parameters.get(name) != value}
