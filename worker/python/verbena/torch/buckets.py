"""Buckets: parameters of one param group whose gradients travel together.

A bucket is a dense table, and two flat tensors in memory that servers on this host share: the
gradient, into which hooks copy, and the parameters, into which the servers write.
"""
from __future__ import annotations

import hashlib
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from .._client import Client
from .._core import Handle, Table
from .._errors import Error, NotFoundError
from .meter import Meter
from .rules import Rule, unknown

# By a parameter's type: types of the table's parameters, its gradients and the flat gradient.
_TYPES: Dict[torch.dtype, Tuple[str, str, torch.dtype]] = {
    torch.float32: ("f32", "f32", torch.float32),
    torch.bfloat16: ("bf16", "bf16", torch.bfloat16),
    torch.float16: ("f16", "f32", torch.float32),
}

NamedParameter = Tuple[str, torch.nn.Parameter]


def shared_tensor(client: Client, elements: int, dtype: torch.dtype,
                  device: "torch.device | str" = "cpu") -> torch.Tensor:
    """A zeroed flat tensor; on a CPU in memory that servers on this host share."""
    if torch.device(device).type != "cpu":
        return torch.zeros(elements, dtype=dtype, device=device)
    if dtype == torch.bfloat16:  # NumPy has none
        bits = client.empty(elements, "uint16").view(np.int16)
        return torch.from_numpy(bits).view(torch.bfloat16)
    return torch.from_numpy(client.empty(elements, str(dtype).replace("torch.", "")))


class Slot:
    """A parameter's place in a bucket."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, bucket: "Bucket",
                 first: int) -> None:
        self.name = name
        self.parameter = parameter
        self.bucket = bucket
        self.first = first  # element of the bucket
        self.passes = 0  # backward passes since the last step
        self.repeated = False  # a backward that raised has pushed the step's gradient
        self._pushed: Optional[Tuple[int, int]] = None  # the gradient that was packed
        self._gradient: torch.Tensor  # its views of the bucket's tensors
        self._pulled: torch.Tensor

    @property
    def packed(self) -> bool:
        """Whether the gradient of this step is in the bucket."""
        return self._pushed is not None

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The parameter's part of a flat tensor of the bucket, in its shape."""
        parameter = self.parameter
        return flat[self.first:self.first + parameter.numel()].view(parameter.shape)

    def place(self) -> None:
        """Finds its place in the bucket's tensors."""
        self._gradient = self.view(self.bucket.gradient)
        self._pulled = self.view(self.bucket.parameters)

    def pack(self) -> None:
        """Copies the gradient into the bucket; zeros if there is none."""
        start = time.perf_counter()
        gradient = self.parameter.grad
        if gradient is None:
            self._gradient.zero_()
        elif gradient.layout != torch.strided:
            raise TypeError(f"the gradient of {self.name!r} is sparse; allowed: dense. Use "
                            "verbena.torch.Embedding, or sparse=False")
        else:
            self._gradient.copy_(gradient.detach())
        self._pushed = self._state()
        self.bucket.meter.copies += time.perf_counter() - start

    def _state(self) -> Tuple[int, int]:
        gradient = self.parameter.grad
        return (0, 0) if gradient is None else (gradient.data_ptr(), gradient._version)

    def changed_since(self) -> bool:
        """Whether the gradient is another one than pack() copied."""
        return self._pushed is not None and self._pushed != self._state()

    def keep_pushed(self) -> None:
        """The pushed gradient stays that of the step, although the parameter has another one."""
        self._pushed = self._state()

    def pack_parameter(self) -> None:
        """Copies the parameter into the bucket."""
        self._pulled.copy_(self.parameter.detach())

    def pack_movement(self) -> None:
        """Copies the negative change of the parameter since it was pulled, as a gradient."""
        torch.sub(self._pulled, self.parameter.detach(), out=self._gradient)

    def unpack_parameter(self, keep: float) -> None:
        """Copies the servers' parameter into the module, but for a share `keep` of the module's."""
        if keep == 0:
            self.parameter.copy_(self._pulled)
        else:
            self.parameter.lerp_(self._pulled, 1 - keep)

    def begin_step(self) -> None:
        self.passes = 0
        self.repeated = False
        self._pushed = None


class Bucket:
    """Parameters that share a table."""

    table: Table
    gradient: torch.Tensor
    """The flat gradient of the open step."""
    parameters: torch.Tensor
    """The flat parameters as last pulled."""

    def __init__(self, name: str, group: int) -> None:
        self.name = name
        self.group = group  # index of the param group
        self.slots: List[Slot] = []
        self.elements = 0
        self.rule: Optional[Rule] = None  # in force at the servers
        self.handles: List[Handle] = []  # of the step in flight
        self.started = 0.0  # of the first of them, in time.perf_counter()
        self.pushed = False  # in the open step
        self.meter = Meter()

    def add(self, name: str, parameter: torch.nn.Parameter) -> None:
        self.slots.append(Slot(name, parameter, self, self.elements))
        self.elements += parameter.numel()

    def layout(self) -> List[Tuple[str, int, Tuple[int, ...]]]:
        """Name, first element and shape of each parameter."""
        return [(s.name, s.first, tuple(s.parameter.shape)) for s in self.slots]

    def description(self) -> str:
        """The table's, by which parameters of another layout do not open it."""
        layout = hashlib.sha256(repr(self.layout()).encode()).hexdigest()[:16]
        return f"verbena.torch, parameters {layout}"

    def create(self, client: Client, rule: Rule, options: Dict[str, Any]) -> None:
        """Creates or opens the table. Workers with another layout get AlreadyExistsError."""
        dtype = self.slots[0].parameter.dtype
        parameter_type, gradient_type, flat = _TYPES[dtype]
        self.table = client.table(
            self.name, shape=self.elements, optimizer=rule.optimizer, rate=rule.rate,
            parameters=dict(rule.parameters), dtype=parameter_type, gradient_dtype=gradient_type,
            description=self.description(), **options)
        self.rule = unknown(rule)  # an earlier run may have changed the values
        device = self.slots[0].parameter.device
        self.gradient = shared_tensor(client, self.elements, flat, device)
        self.parameters = shared_tensor(client, self.elements, dtype, device)
        for slot in self.slots:
            slot.place()

    def wait(self, keep: float = 0.0) -> None:
        """Waits for the step in flight and copies its parameters into the module.

        keep: share of the module's parameters that stays.

        Raises the first error of the step's operations, when all have ended.
        """
        if not self.handles:
            return
        first: Optional[Error] = None
        for handle in self.handles:  # an interrupt leaves them to the next call
            try:
                self.meter.wait(handle)
            except Error as error:
                first = first or error
        self.meter.ended(self.started, self.handles)
        if first is not None:
            self.handles = []
            raise first
        start = time.perf_counter()
        with torch.no_grad():
            for slot in self.slots:
                slot.unpack_parameter(keep)
        self.meter.copies += time.perf_counter() - start
        self.handles = []


def check_tables(client: Client, buckets: Sequence[Bucket]) -> None:
    """Raises NotFoundError, before any table is made, if one of the buckets has no table to resume."""
    for bucket in buckets:
        try:
            client.open_table(bucket.name)
        except NotFoundError as error:
            raise NotFoundError(f"resume is True and table {bucket.name!r} does not exist, so there "
                                "is nothing to resume; begin the run with resume=False, or check "
                                "name=") from error


def unique_parameters(named: Sequence[NamedParameter]) -> List[NamedParameter]:
    """Trainable parameters, each once, under its first name.

    Raises ValueError for a name that is used twice, TypeError for a type that tables do not have and
    for elements that are no pairs of a name and a parameter.
    """
    names: set[str] = set()
    seen: set[int] = set()
    found = []
    for pair in named:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"named_parameters has an element of type {type(pair).__name__}; allowed: "
                            "pairs of a name and a parameter, as of model.named_parameters()")
        name, parameter = pair
        if name in names:
            raise ValueError(f"named_parameters has the name {name!r} twice; allowed: unique names")
        names.add(name)
        if id(parameter) in seen or not parameter.requires_grad:
            continue  # shared or frozen
        seen.add(id(parameter))
        if parameter.dtype not in _TYPES:
            allowed = ", ".join(str(kind) for kind in _TYPES)
            raise TypeError(f"parameter {name!r} is {parameter.dtype}; allowed: {allowed}")
        found.append((name, parameter))
    return found


def group_parameters(named: Sequence[NamedParameter],
                     groups: Sequence[Dict[str, Any]]) -> List[List[NamedParameter]]:
    """The named parameters of each param group.

    Raises ValueError unless the groups have these parameters, each once.
    """
    of_group = {id(p): index for index, group in enumerate(groups) for p in group["params"]}
    by_group: List[List[NamedParameter]] = [[] for _ in groups]
    for name, parameter in named:
        if id(parameter) not in of_group:
            raise ValueError(f"parameter {name!r} is in no param group of the optimizer")
        by_group[of_group.pop(id(parameter))].append((name, parameter))
    for group in groups:
        for parameter in group["params"]:
            if parameter.requires_grad and id(parameter) in of_group:
                raise ValueError("a param group has a parameter of shape "
                                 f"{tuple(parameter.shape)} that named_parameters lacks")
    return by_group


def make_buckets(prefix: str, groups: Sequence[Sequence[NamedParameter]],
                 bucket_bytes: int) -> List[Bucket]:
    """Buckets in the order in which backward fills them: that of the parameters, reversed.

    groups: the parameters of each param group, in the order of their modules.
    bucket_bytes: a bucket takes parameters of a group up to this size, at least one; 0: a table for
        each parameter, named after it.
    """
    buckets: List[Bucket] = []
    for index, named in enumerate(groups):
        number = 0
        last: Optional[Bucket] = None
        for name, parameter in reversed(list(named)):
            if parameter.numel() == 0:
                continue
            like = last.slots[0].parameter if last is not None else None
            fits = (last is not None and like is not None and like.dtype == parameter.dtype
                    and like.device == parameter.device
                    and (last.elements + parameter.numel()) * parameter.element_size()
                    <= bucket_bytes)
            if last is None or not fits:
                table = f"{prefix}/{name}" if bucket_bytes == 0 else f"{prefix}/{index}.{number}"
                last = Bucket(table, index)
                number += 1
                buckets.append(last)
            last.add(name, parameter)
    return buckets
