"""Checks of arguments before the library sees them: errors name the argument and what is allowed."""
from __future__ import annotations

import math
import numbers
from typing import Any, Mapping, Optional, Sequence

# NumPy has no bfloat16: its bits are uint16, which stands for float16, too.
_TYPES = {"f32": ("float32",), "bf16": ("bfloat16", "uint16"), "f16": ("float16", "uint16")}


def check_text(name: str, value: Any) -> None:
    """Raises ValueError for a text with a NUL character, where the library's texts end."""
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{name} is {value!r}; allowed: text without the NUL character")


def check_texts(options: Mapping[str, Any]) -> None:
    """check_text() of all values; also of the names in one that is a dict."""
    for name, value in options.items():
        check_text(name, value)
        if isinstance(value, Mapping):
            for key in value:
                check_text(name, key)


def check_integer(name: str, value: Any, least: int = 0, greatest: int = 2**64 - 1) -> None:
    """Raises TypeError for what is no integer, ValueError for one out of range."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; allowed: an integer")
    if not least <= int(value) <= greatest:
        raise ValueError(f"{name} is {value}; allowed: {least} to {greatest}")


def check_range(first: Any, count: Any, min_version: Any) -> None:
    """check_integer() of the range and version of a pull."""
    check_integer("first", first)
    if count is not None:
        check_integer("count", count)
    if min_version is not None:
        check_integer("min_version", min_version, greatest=2**64 - 2)  # the last one: the default


def staleness_ms(read_from: Any, max_staleness: Any) -> Optional[int]:
    """The milliseconds of `max_staleness`, in seconds; None: the primary answers."""
    if read_from not in ("primary", "any"):
        raise ValueError(f"read_from is {read_from!r}; allowed: 'primary', 'any'")
    if not isinstance(max_staleness, numbers.Real) or isinstance(max_staleness, bool):
        raise TypeError(f"max_staleness is {max_staleness!r}; allowed: seconds")
    seconds = float(max_staleness)
    if not 0.001 <= seconds <= 4294967:
        raise ValueError(f"max_staleness is {max_staleness}; allowed: 0.001 to 4294967 seconds")
    return int(seconds * 1000) if read_from == "any" else None


def check_init(array: Any, shape: Optional[Sequence[int]], dim: Optional[int], dtype: Any) -> None:
    """Checks parameters for a new dense table, so that a wrong array creates none.

    dtype: of the table; None: f32. Raises TypeError or ValueError.
    """
    if dim is not None:
        raise ValueError("init is an array and dim is given; allowed for an embedding table: a word, "
                         "or a tuple of a word and its numbers. assign_rows() writes rows")
    allowed = _TYPES.get("f32" if dtype is None else dtype)
    kind = str(getattr(array, "dtype", "")).replace("torch.", "")
    if allowed is not None and kind not in allowed:
        raise TypeError(f"init has elements of type {kind}; allowed: {', or '.join(allowed)}")
    elements, wanted = math.prod(array.shape), math.prod(shape or ())
    if elements != wanted:
        raise ValueError(f"init has {elements} elements (shape {tuple(array.shape)}); allowed: "
                         f"{wanted}, those of shape {tuple(shape or ())}")
    flags = getattr(array, "flags", None)
    contiguous = getattr(array, "is_contiguous", None)
    if not (contiguous() if callable(contiguous) else getattr(flags, "c_contiguous", True)):
        raise ValueError(f"init (shape {tuple(array.shape)}) is not contiguous")
