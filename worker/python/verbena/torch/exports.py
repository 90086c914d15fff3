"""Checkpoints of a DistributedOptimizer's tables for plain torch.optim."""
from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Tuple

import torch

from .buckets import Bucket, NamedParameter, group_parameters, make_buckets, unique_parameters
from .safetensors import read_safetensors

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
                optimizer: torch.optim.Optimizer, *, name: str = "model",
                bucket_bytes: int = 4 << 20) -> Tuple[Dict[str, torch.Tensor], Dict[str, Any]]:
    """Reads what `verbena checkpoint export` wrote of a DistributedOptimizer's tables.

        parameters, state = verbena.torch.load_export(
            "model.safetensors", model.named_parameters(), optimizer)
        model.load_state_dict(parameters, strict=False)     # frozen ones and buffers are not there
        optimizer.load_state_dict(state)                    # the torch.optim one

    path: the file, or the directory of an export in several files. With the export's option
        --optimizer it has the optimizer's state; without it the returned state is empty.
    named_parameters, optimizer, name, bucket_bytes: as given to DistributedOptimizer: the param
        groups and sizes tell which table has which parameter. Values are not read.

    Returns the parameters by name, and a state_dict() of the torch.optim optimizer. Its "step" is
    the greatest count of applies of a parameter's table. No cluster is needed.

    Raises ValueError for a file that breaks the format or is of other parameters; OSError.
    """
    named = unique_parameters(list(named_parameters))
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
