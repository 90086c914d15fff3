"""The same tensors, or the same state of local optimizers, on all workers."""
from __future__ import annotations

import json
import weakref
from typing import Any, Iterable, List, Mapping, Tuple, Union

import torch

from .._client import Client
from .._errors import NotFoundError
from .all_reduce import refuse_elastic
from .buckets import shared_tensor
from .optimizer import DistributedOptimizer

Tensors = Union[Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]]]

# Calls by client: each has a table of its own.
_calls: "weakref.WeakKeyDictionary[Client, int]" = weakref.WeakKeyDictionary()

# Types that float32 holds exactly; others are sent byte by byte.
_EXACT = (torch.float32, torch.float16, torch.bfloat16)


def _as_floats(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return (flat if tensor.dtype in _EXACT else flat.view(torch.uint8)).to(torch.float32)


def _from_floats(floats: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.dtype in _EXACT:
        return floats.to(like.dtype).view(like.shape)
    return floats.to(torch.uint8).view(like.dtype).view(like.shape)


def _elements(tensor: torch.Tensor) -> int:
    return tensor.numel() * (1 if tensor.dtype in _EXACT else tensor.element_size())


def broadcast_parameters(tensors: Tensors, *, client: Client, root_rank: int = 0,
                         name: str = "broadcast") -> None:
    """Writes the tensors of one worker into those of all others, in place.

    tensors: a state_dict(), or pairs of names and tensors such as named_parameters() and
        named_buffers(); of any type, the same names, shapes and types on all workers. Values are
        exact.
    root_rank: rank of the worker that has the values.
    name: prefix of the table that it makes and drops, which has as many float32 numbers as the
        tensors have elements (as bytes, for types other than float32, float16 and bfloat16).

    All workers of the job make the call, and it returns when all have the values. Raises ValueError
    for a root_rank that no worker has; verbena.Error.
    """
    refuse_elastic(client, "broadcast_parameters()")
    named = list(tensors.items() if isinstance(tensors, Mapping) else tensors)
    values: List[torch.Tensor] = [v for _, v in named if isinstance(v, torch.Tensor)]
    elements = sum(_elements(value) for value in values)
    call = _calls[client] = _calls.get(client, 0) + 1
    if elements == 0:
        return
    # The last element is 1 if there is a root.
    table = client.table(f"{name}/{call}", shape=elements + 1, consistency="sync",
                         non_finite="apply")
    flat = shared_tensor(client, elements + 1, torch.float32)
    with torch.no_grad():
        if client.rank == root_rank:
            torch.cat([_as_floats(value) for value in values] + [torch.ones(1, dtype=torch.float32)],
                      out=flat)
            client.assign(table, flat)
        client.end_step(table).wait()
        client.pull(table, flat).wait()
        if flat[-1] != 1:
            raise ValueError(f"root_rank is {root_rank}, and no worker has it; allowed: the rank of "
                             "a worker")
        if client.rank != root_rank:
            for value, part in zip(values, flat[:-1].split([_elements(v) for v in values])):
                value.copy_(_from_floats(part, value))
    try:
        client.end_step(table).wait()  # all have pulled
    except NotFoundError:
        pass  # the root has dropped it, after that step
    if client.rank == root_rank:
        client.drop_table(f"{name}/{call}")


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, *, client: Client,
                              root_rank: int = 0, name: str = "broadcast") -> None:
    """Gives all workers the state_dict() of one worker's local optimizer.

    optimizer: of the same class and param groups on all workers. Of a DistributedOptimizer, whose
        state is on the servers, the values of the param groups and the number of steps are sent,
        and every worker's model gets the servers' parameters.

    Otherwise as broadcast_parameters(). Raises TypeError for a state that is no plain data.
    """
    def send(state: Any) -> Any:
        return _broadcast(state, client, root_rank, name)

    if isinstance(optimizer, DistributedOptimizer):
        optimizer.share_groups(send)
        return
    state = send(optimizer.state_dict())
    if client.rank != root_rank:
        optimizer.load_state_dict(state)


def _broadcast(state: Any, client: Client, root_rank: int, name: str) -> Any:
    """The state of the root, on all workers."""
    tensors: List[torch.Tensor] = []
    text = json.dumps(_describe(state, tensors)).encode()
    length = torch.tensor([len(text)])
    broadcast_parameters([("length", length)], client=client, root_rank=root_rank, name=name)
    root = client.rank == root_rank
    described = torch.zeros(int(length), dtype=torch.uint8)
    if root:
        described.copy_(torch.tensor(list(text), dtype=torch.uint8))
    broadcast_parameters([("text", described)], client=client, root_rank=root_rank, name=name)
    if not root:
        tensors = []
        state = _build(json.loads(bytes(described.tolist())), tensors)
    broadcast_parameters([("", tensor) for tensor in tensors], client=client, root_rank=root_rank,
                         name=name)
    return state


def _describe(value: Any, tensors: List[torch.Tensor]) -> Any:
    """The value for JSON; tensors are left out, and added to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": [str(value.dtype).replace("torch.", ""), list(value.shape)]}
    if isinstance(value, dict):
        return {"dict": [[key, _describe(each, tensors)] for key, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_describe(each, tensors) for each in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"the optimizer's state has a {type(value).__name__}; allowed: tensors, numbers, "
                    "texts, None, lists, tuples and dicts of these")


def _build(described: Any, tensors: List[torch.Tensor]) -> Any:
    """The value that _describe() had, with new tensors, which are added to the list."""
    if not isinstance(described, dict):
        return described
    (kind, content), = described.items()
    if kind == "tensor":
        tensors.append(torch.zeros(content[1], dtype=getattr(torch, content[0])))
        return tensors[-1]
    if kind == "dict":
        return {key: _build(each, tensors) for key, each in content}
    values = [_build(each, tensors) for each in content]
    return tuple(values) if kind == "tuple" else values
