"""Hooks of autograd and of modules, for PyTorch 1.13 and later."""
from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterator, List, Sequence

import torch

from .buckets import Bucket


class GradientHook:
    """Keeps a hook alive; a parameter's AccumulateGrad node lives only as long as a reference."""

    def __init__(self, handle: Any, node: Any) -> None:
        self._handle = handle
        self._node = node

    def remove(self) -> None:
        self._handle.remove()


def on_gradient(parameter: torch.nn.Parameter, hook: Callable[[], None]) -> GradientHook:
    """Calls `hook` after each backward pass has added to parameter.grad."""
    register = getattr(parameter, "register_post_accumulate_grad_hook", None)
    if register is not None:  # from 2.1 on
        return GradientHook(register(lambda _: hook()), None)
    with torch.enable_grad():
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return GradientHook(node.register_hook(lambda *_: hook()), node)


# They have no forward(): their parent's reads their parameters.
_CONTAINERS = (torch.nn.ParameterList, torch.nn.ParameterDict, torch.nn.ModuleList,
               torch.nn.ModuleDict)
# Their forward() reads parameters of the modules in them.
_READERS = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)


def _parameters_of(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """The parameters that the module's own forward() reads."""
    yield from module.parameters(recurse=isinstance(module, _READERS))
    for child in module.children():
        if isinstance(child, _CONTAINERS):
            yield from _parameters_of(child)


def _keep_in_flight(buckets: List[Bucket]) -> None:
    buckets[:] = [bucket for bucket in buckets if bucket.handles]


def wait_before_forward(model: torch.nn.Module, buckets: Sequence[Bucket],
                        owner: object) -> List[Any]:
    """Makes the forward of each module wait for the buckets of its own parameters.

    owner: the buckets are kept as long as it lives, or their step is in flight.

    Raises ValueError for a parameter that no module of the model has.
    """
    bucket_of: Dict[int, Bucket] = {id(slot.parameter): bucket
                                    for bucket in buckets for slot in bucket.slots}
    alive = weakref.ref(owner)
    found = set()
    handles = []
    for module in model.modules():
        own = [id(p) for p in _parameters_of(module) if id(p) in bucket_of]
        if not own:
            continue
        found.update(own)
        needed = list({id(bucket_of[p]): bucket_of[p] for p in own}.values())

        # It lives as long as the model; of an owner that is gone it keeps steps in flight alone.
        def wait(_: torch.nn.Module, __: Any, needed: List[Bucket] = needed) -> None:
            for bucket in needed:
                if not bucket.pushed:  # else its parameters are those of the open step
                    bucket.wait()
            if alive() is None:
                needed.clear()
        weakref.finalize(owner, _keep_in_flight, needed).atexit = False
        handles.append(module.register_forward_pre_hook(wait))
        # First: that of weight_norm() computes with the parameters.
        module._forward_pre_hooks.move_to_end(handles[-1].id, last=False)
    missing = [slot.name for bucket in buckets for slot in bucket.slots
               if id(slot.parameter) not in found]
    if missing:
        raise ValueError(f"model has no module with the parameters {missing}; pass the model whose "
                         "parameters are trained, or none")
    return handles
