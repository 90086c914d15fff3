"""Files in the safetensors format, read strictly and written: tensors without any code.

`verbena checkpoint export` writes such files, and `verbena checkpoint import` reads them
(docs/checkpoint-format.md).
"""
from __future__ import annotations

import json
import os
import struct
from typing import Any, BinaryIO, Dict, List, Mapping, Tuple

import torch

# A header may take this much memory, as in the format's own implementation.
_MAX_HEADER = 100_000_000

_TYPES: Dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
    # Counts below 2^63, which the checkpoints' are: torch has no uint64.
    "U64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items() if name != "U64"}


def _bytes_of(dtype: torch.dtype) -> int:
    return torch.tensor([], dtype=dtype).element_size()


class Place:
    """A tensor's place in a file."""

    def __init__(self, dtype: torch.dtype, shape: Tuple[int, ...], begin: int, end: int) -> None:
        self.dtype = dtype
        self.shape = shape
        self.begin = begin
        self.end = end


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _place(name: str, entry: Any, data_bytes: int) -> Place:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} has other members than dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"tensor {name!r} has the type {kind!r}; allowed: {', '.join(_TYPES)}")
    if not isinstance(shape, list) or not all(_is_count(n) for n in shape):
        raise ValueError(f"tensor {name!r} has the shape {shape!r}; allowed: a list of counts")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise ValueError(f"tensor {name!r} has the offsets {offsets!r}; allowed: [begin, end]")
    begin, end = offsets
    size = _bytes_of(_TYPES[kind])
    for n in shape:
        size *= n
        if size > data_bytes:
            break  # before it grows: a shape may be long
    if begin > end or end > data_bytes or (size != end - begin and 0 not in shape) or \
            (0 in shape and begin != end):
        raise ValueError(f"tensor {name!r} of {kind} {shape} is at [{begin}, {end}); allowed: as "
                         f"many bytes as it has, up to {data_bytes}")
    return Place(_TYPES[kind], tuple(shape), begin, end)


def _read_header(file: BinaryIO, size: int) -> Tuple[int, Dict[str, Place]]:
    head = file.read(8)
    if len(head) != 8:
        raise ValueError(f"it has {len(head)} bytes; allowed: 8 and more")
    length, = struct.unpack("<Q", head)
    if length > min(_MAX_HEADER, size - 8):
        raise ValueError(f"its header has {length} bytes; allowed: up to "
                         f"{min(_MAX_HEADER, size - 8)}")
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("__metadata__ is no object of texts")
    data_bytes = size - 8 - length
    places = {name: _place(name, entry, data_bytes) for name, entry in header.items()}
    at = 0
    for name, place in sorted(places.items(), key=lambda item: (item[1].begin, item[1].end)):
        if place.begin != at:
            raise ValueError(f"tensor {name!r} begins at {place.begin}; allowed: {at}, without "
                             "gaps and overlaps")
        at = place.end
    if at != data_bytes:
        raise ValueError(f"it has {data_bytes} bytes of tensors; allowed: {at}, the end of the last")
    return 8 + length, places


def read_safetensors(path: "str | os.PathLike[str]") -> Dict[str, torch.Tensor]:
    """Reads all tensors of a file.

    Memory: that of the tensors, and in proportion to the header, which has at most 100 MB. U64
    becomes torch.int64, with the same bits.

    Raises ValueError for a file that breaks the format, names the path and the problem; OSError.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        try:
            start, places = _read_header(file, size)
            tensors = {}
            for name, place in places.items():
                data = bytearray(place.end - place.begin)
                file.seek(start + place.begin)
                if file.readinto(data) != len(data):
                    raise ValueError(f"it ends in tensor {name!r}; it was truncated while it was "
                                     "read")
                flat = (torch.frombuffer(data, dtype=place.dtype) if data
                        else torch.empty(0, dtype=place.dtype))
                tensors[name] = flat.reshape(place.shape)
            return tensors
        except (ValueError, RuntimeError) as error:  # torch: too many dimensions
            raise ValueError(f"{os.fspath(path)}: {error}") from None


def write_safetensors(path: "str | os.PathLike[str]", tensors: Mapping[str, torch.Tensor],
                      counts: "frozenset[str]" = frozenset()) -> None:
    """Writes the tensors, in any order of their types, to a new file.

    counts: names of int64 tensors that are written as U64.

    Raises FileExistsError; ValueError for a type that the format does not have.
    """
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    # Wider types come first, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in names:
        tensor = tensors[name]
        kind = "U64" if name in counts else _NAMES.get(tensor.dtype)
        if kind is None:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}; allowed: {', '.join(_TYPES)}")
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            if flat.numel() > 0:
                file.write(flat.view(torch.uint8).numpy().tobytes()
                           if flat.dtype != torch.bool else bytes(flat.tolist()))
