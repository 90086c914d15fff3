"""Lists, tuples and other sequences of numbers as arrays: refused where NumPy would round or parse."""
from __future__ import annotations

from typing import Any, Iterable, List

import numpy as np

_INTEGERS = "uint64 or int64 arrays and tensors, or a sequence of integers from 0 to 2**64 - 1"
_NUMBERS = "float32 arrays and tensors, or a sequence of numbers"


def _items(argument: Any, name: str, allowed: str) -> List[Any]:
    """The elements of a sequence, also of one of sequences."""
    try:
        items: List[Any] = np.array(argument, dtype=object).ravel().tolist()
    except ValueError as error:  # arrays of different shapes
        raise TypeError(f"{name}: {error}; allowed: {allowed}") from None
    return items


def _refuse(kinds: Iterable[type], good: Any, name: str, allowed: str) -> None:
    for kind in kinds:
        if issubclass(kind, (bool, np.bool_)) or not issubclass(kind, good):
            raise TypeError(f"{name} has elements of type {kind.__name__}; allowed: {allowed}")


def integers(argument: Any, name: str) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """The integers of a sequence.

    Raises TypeError for elements that are no integers, ValueError for integers out of range.
    """
    kinds = set(map(type, argument)) if isinstance(argument, (list, tuple)) else {object}
    items = argument
    if not kinds <= {int}:
        items = _items(argument, name, _INTEGERS)
        _refuse(set(map(type, items)), (int, np.integer), name, _INTEGERS)
    if len(items) > 0:
        least, greatest = min(items), max(items)
        if least < 0 or greatest >= 2 ** 64:
            raise ValueError(f"{name} has {least if least < 0 else greatest}; allowed: {_INTEGERS}")
    return np.array(items, np.uint64)


def numbers(argument: Any, name: str) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """The numbers of a sequence, rounded to float32. Raises TypeError for elements of another kind."""
    array = np.array(_items(argument, name, _NUMBERS))
    if array.size > 0 and array.dtype.kind not in "fiu":
        kinds = sorted({type(item).__name__ for item in array.tolist()})
        raise TypeError(f"{name} has elements of type {', '.join(kinds)}; allowed: {_NUMBERS}")
    return array.astype(np.float32)
