"""The state of the servers' optimizers in the form of torch.optim's state_dict().

The arrays have the names that torch.optim gives them, so a state_dict() of one is loaded by the
other. "step" is the servers' count of applies; "master" the float32 copy of 16-bit parameters.
"""
from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import torch

from .._client import Client
from .._core import Handle
from .buckets import Bucket, Slot, shared_tensor

State = Dict[int, Dict[str, Any]]

_MASTER = "master"


def read_state(client: Client, buckets: Sequence[Bucket],
               index_of: Callable[[Slot], int]) -> State:
    """The state of all parameters by index; none of those that no gradient was applied to.

    Of a sync table parameters and state are those of one step, as long as the caller's worker has
    its next step open.
    """
    state: State = {}
    for bucket in buckets:
        names = bucket.table.state_arrays
        pulled = {name: client.pull_state(bucket.table, name,
                                          shared_tensor(client, bucket.elements, torch.float32))
                  for name in names}
        arrays = {name: handle.wait() for name, handle in pulled.items()}
        applies = [handle.state_versions()["greatest_applies"] for handle in pulled.values()]
        if not applies or max(applies) == 0:
            continue
        for slot in bucket.slots:
            entry: Dict[str, Any] = {"step": torch.tensor(float(max(applies)))}
            for name, flat in arrays.items():
                entry[name] = slot.view(flat).clone()
            state[index_of(slot)] = entry
    return state


class NewState:
    """A checked state_dict()["state"] that write() brings to the servers."""

    def __init__(self, buckets: Sequence[Bucket], index_of: Callable[[Slot], int],
                 state: Mapping[int, Mapping[str, Any]]) -> None:
        """Raises ValueError if the tables cannot take the state."""
        self._buckets = buckets
        self._index_of = index_of
        self._state = state
        known = {index_of(slot) for bucket in buckets for slot in bucket.slots}
        unknown = sorted(str(index) for index in state if index not in known)
        if unknown:
            raise ValueError(f"state_dict has state of the parameters {', '.join(unknown)}; allowed: "
                             f"indices of this optimizer's trained parameters, 0 to {max(known)}")
        self._steps = [self._check(bucket) for bucket in buckets]

    @property
    def steps(self) -> int:
        """The greatest number of steps that a parameter has made."""
        return max(self._steps, default=0)

    def _check(self, bucket: Bucket) -> int:
        steps: Dict[int, str] = {}
        for slot in bucket.slots:
            entry = self._state.get(self._index_of(slot), {})
            for name in bucket.table.state_arrays:
                value = entry.get(name)
                if value is None and (not entry or name == _MASTER):
                    continue
                if not isinstance(value, torch.Tensor) or value.shape != slot.parameter.shape:
                    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else value
                    raise ValueError(f"state_dict has {name} {shape} of {slot.name!r}; allowed: a "
                                     f"tensor of shape {tuple(slot.parameter.shape)}")
            allowed = set(bucket.table.state_arrays) | {"step", _MASTER}
            odd = sorted(str(name) for name in entry
                         if name not in allowed and entry[name] is not None)
            if odd:
                raise ValueError(f"state_dict has {', '.join(odd)} of {slot.name!r}, which the "
                                 f"servers' {bucket.table.optimizer} lacks; allowed: "
                                 f"{', '.join(sorted(allowed))}")
            steps.setdefault(int(entry.get("step", 1 if entry else 0)), slot.name)
        if len(steps) > 1:
            (one, first), (other, second) = sorted(steps.items())[:2]
            raise ValueError(
                f"state_dict has {first!r} at step {one} and {second!r} at step {other}, and both "
                f"are in table {bucket.name!r}, which counts them together; make the optimizer "
                "with bucket_bytes=0")
        return next(iter(steps))

    def _flat(self, client: Client, bucket: Bucket, name: str) -> torch.Tensor:
        flat = shared_tensor(client, bucket.elements, torch.float32)
        for slot in bucket.slots:
            value = self._state.get(self._index_of(slot), {}).get(name)
            if value is None and name == _MASTER:
                value = slot.parameter.detach()
            if value is not None:
                slot.view(flat).copy_(value)
        return flat

    def writes(self, client: Client) -> List[List[Tuple[Bucket, Callable[[], Handle]]]]:
        """Assignments in turns: of each bucket one a turn, in order, parameters first.

        In a sync table each takes a step. Tables with clip_global_norm make their steps together,
        and a step without an assignment would apply a gradient of zero. So every bucket has one in
        every turn: those with fewer arrays repeat their parameters.
        """
        turns = 1 + max((len(b.table.state_arrays) for b in self._buckets), default=0)
        plan: List[List[Tuple[Bucket, Callable[[], Handle]]]] = [[] for _ in range(turns)]
        for bucket, steps in zip(self._buckets, self._steps):
            # The master copy gives the parameters, and may change the state of ftrl.
            arrays = sorted(bucket.table.state_arrays, key=lambda name: name != _MASTER)
            for turn in range(turns - len(arrays)):
                plan[turn].append((bucket, partial(client.assign, bucket.table, bucket.parameters)))
            for turn, name in enumerate(arrays, turns - len(arrays)):
                plan[turn].append((bucket, partial(self._assign, client, bucket, name, steps)))
        return plan

    def _assign(self, client: Client, bucket: Bucket, name: str, steps: int) -> Handle:
        return client.assign_state(bucket.table, name, self._flat(client, bucket, name),
                                   applies=steps)
