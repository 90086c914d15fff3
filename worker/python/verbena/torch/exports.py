"""Checkpoints of a DistributedOptimizer's tables for plain torch.optim, and the other way."""
from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterable, List, Tuple, Union

import torch

from .buckets import Bucket, NamedParameter, group_parameters, make_buckets, unique_parameters
from .rules import rule_of
from .safetensors import read_safetensors, write_safetensors

_APPLIES = "applies"


def _read(path: "str | os.PathLike[str]") -> Dict[str, torch.Tensor]:
    """The tensors of a file, or of all files of an export in several files."""
    if not os.path.isdir(path):
        return read_safetensors(path)
    tensors: Dict[str, torch.Tensor] = {}
    for name in sorted(os.listdir(path)):
        if not name.endswith(".safetensors"):
            continue
        for key, tensor in read_safetensors(os.path.join(path, name)).items():
            if key in tensors:
                raise ValueError(f"{os.fspath(path)}: {name} has the tensor {key!r} of another "
                                 "file; allowed: each in one file")
            tensors[key] = tensor
    return tensors


def _arrays(bucket: Bucket, tensors: Dict[str, torch.Tensor],
            path: "str | os.PathLike[str]") -> Dict[str, torch.Tensor]:
    """The bucket's tensors by array; that of the parameters is ""."""
    if bucket.name not in tensors:
        raise ValueError(f"{os.fspath(path)} has no table {bucket.name!r}; it has: "
                         f"{', '.join(sorted(tensors)[:10])}")
    arrays = {"": tensors[bucket.name]}
    for key, tensor in tensors.items():
        table, dot, array = key.rpartition(".")
        if dot and table == bucket.name:
            arrays[array] = tensor
    for array, tensor in arrays.items():
        if array != _APPLIES and tensor.shape != (bucket.elements,):
            raise ValueError(f"{os.fspath(path)}: {bucket.name}{'.' if array else ''}{array} has "
                             f"the shape {tuple(tensor.shape)}; allowed: ({bucket.elements},), the "
                             "elements of its parameters. Was it made with other parameters, "
                             "param groups or bucket_bytes?")
    return arrays


def load_export(path: "str | os.PathLike[str]", named_parameters: Iterable[NamedParameter],
                optimizer: Union[torch.optim.Optimizer, str], *, name: str = "model",
                bucket_bytes: int = 4 << 20) -> Tuple[Dict[str, torch.Tensor], Dict[str, Any]]:
    """Reads what `verbena checkpoint export` wrote of a DistributedOptimizer's tables.

        parameters, state = verbena.torch.load_export(
            "model.safetensors", model.named_parameters(), optimizer)
        model.load_state_dict(parameters, strict=False)     # frozen ones and buffers are not there
        optimizer.load_state_dict(state)                    # the torch.optim one

    path: the file, or the directory of an export in several files. With the export's option
        --optimizer it has the optimizer's state; without it the returned state is empty.
    named_parameters, optimizer, name, bucket_bytes: as given to DistributedOptimizer: the param
        groups and sizes tell which table has which parameter. Values are not read. With the name of
        a server's optimizer the state is for a DistributedOptimizer of that name.

    Returns the parameters by name, and a state_dict() of the torch.optim optimizer. Its "step" is
    the greatest count of applies of a parameter's table. No cluster is needed.

    Raises ValueError for a file that breaks the format or is of other parameters; OSError.
    """
    named = unique_parameters(list(named_parameters))
    if isinstance(optimizer, str):
        groups: List[Dict[str, Any]] = [{"params": [parameter for _, parameter in named]}]
        if optimizer == "lamb":
            bucket_bytes = 0  # as DistributedOptimizer
    else:
        groups = optimizer.param_groups
    buckets = make_buckets(name, group_parameters(named, groups), bucket_bytes)
    tensors = _read(path)
    parameters: Dict[str, torch.Tensor] = {}
    state: Dict[int, Dict[str, Any]] = {}
    indices: Dict[int, int] = {}
    packed: List[Dict[str, Any]] = []
    for group in groups:
        places = [indices.setdefault(id(p), len(indices)) for p in group["params"]]
        packed.append({**{key: value for key, value in group.items() if key != "params"},
                       "params": places})
    for bucket in buckets:
        arrays = _arrays(bucket, tensors, path)
        flat, applies = arrays.pop(""), arrays.pop(_APPLIES, torch.zeros(0))
        steps = float(applies.max()) if applies.numel() > 0 else 0.0
        for slot in bucket.slots:
            parameters[slot.name] = slot.view(flat).clone()
            if steps == 0 or not arrays:
                continue
            state[indices[id(slot.parameter)]] = {
                "step": torch.tensor(steps),
                **{array: slot.view(tensor).clone() for array, tensor in arrays.items()}}
    return parameters, {"state": state, "param_groups": packed}


# State arrays of the servers' optimizers for those of torch.optim (docs/checkpoint-format.md).
_STATE = {"sgd": (), "momentum": ("momentum_buffer",), "nesterov": ("momentum_buffer",),
          "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq"),
          "adagrad": ("sum",), "rmsprop": ("square_avg",)}
_CHUNK_BYTES = 256 << 10


def _tensors(bucket: Bucket, arrays: Tuple[str, ...], optimizer: torch.optim.Optimizer
             ) -> Dict[str, torch.Tensor]:
    if bucket.slots[0].parameter.dtype != torch.float32:
        raise TypeError(f"parameter {bucket.slots[0].name!r} is "
                        f"{bucket.slots[0].parameter.dtype}; allowed: torch.float32")
    flat = {array: torch.zeros(bucket.elements) for array in ("", *arrays)}
    steps: Dict[int, str] = {}
    for slot in bucket.slots:
        entry = optimizer.state.get(slot.parameter, {})
        slot.view(flat[""]).copy_(slot.parameter.detach())
        for array in arrays:
            if entry.get(array) is not None:
                slot.view(flat[array]).copy_(entry[array])
        steps.setdefault(int(entry.get("step", 1 if entry else 0)), slot.name)
    if len(steps) > 1:
        (one, first), (other, second) = sorted(steps.items())[:2]
        raise ValueError(f"{first!r} is at step {one} and {second!r} at step {other}, and table "
                         f"{bucket.name!r} counts them together; allowed: one step, or "
                         "bucket_bytes=0")
    chunks = -(-bucket.elements * 4 // _CHUNK_BYTES)
    flat[_APPLIES] = torch.full((chunks,), next(iter(steps)), dtype=torch.int64)
    return flat


def save_import(directory: "str | os.PathLike[str]", named_parameters: Iterable[NamedParameter],
                optimizer: torch.optim.Optimizer, *, name: str = "model",
                bucket_bytes: int = 4 << 20, consistency: str = "sync") -> None:
    """Writes a model and its torch.optim optimizer for `verbena checkpoint import`.

        verbena.torch.save_import("plain", model.named_parameters(), optimizer)

    and then, before the workers start with DistributedOptimizer(..., resume=True):

        verbena checkpoint import plain/model.safetensors --spec plain/tables.json --job JOB --to DIR
        verbena checkpoint restore DIR

    directory: is made; it gets model.safetensors and tables.json.
    named_parameters, optimizer, name, bucket_bytes, consistency: as for DistributedOptimizer,
        which has no other table options. Parameters are float32.

    Raises FileExistsError; TypeError and ValueError for parameters and optimizers that
    DistributedOptimizer refuses, and for parameters of one table at different steps.
    """
    named = unique_parameters(list(named_parameters))
    groups = group_parameters(named, optimizer.param_groups)
    tensors: Dict[str, torch.Tensor] = {}
    tables: List[Dict[str, Any]] = []
    for bucket in make_buckets(name, groups, bucket_bytes):
        group = dict(optimizer.param_groups[bucket.group])
        group["lr"] = group.get("initial_lr", group["lr"])
        rule = rule_of(optimizer, group, 0)
        for array, flat in _tensors(bucket, _STATE[rule.optimizer], optimizer).items():
            tensors[f"{bucket.name}.{array}" if array else bucket.name] = flat
        tables.append({"spec": {
            "name": bucket.name, "shape": [bucket.elements], "dtype": "DTYPE_F32",
            "consistency": f"CONSISTENCY_{consistency.upper()}", "chunk_bytes": _CHUNK_BYTES,
            "description": bucket.description(),
            "optimizer": {"name": rule.optimizer, "rate": rule.rate,
                          "parameters": dict(rule.parameters)}}})
    os.makedirs(directory, exist_ok=True)
    counts = frozenset(key for key in tensors if key.endswith("." + _APPLIES))
    write_safetensors(os.path.join(directory, "model.safetensors"), tensors, counts)
    with open(os.path.join(directory, "tables.json"), "x", encoding="utf-8") as file:
        json.dump({"tables": tables}, file, indent=1)
