"""The part of the extension's access to PyTorch that differs between its versions.

PyTorch is not imported here: a caller that passes a tensor has imported it.
"""
from __future__ import annotations

import sys
from typing import Any


def stream_of(device: int) -> int:
    """The address of PyTorch's current CUDA stream on a device."""
    stream: int = sys.modules["torch"].cuda.current_stream(device).cuda_stream
    return stream


def note_write(tensor: Any) -> None:
    """Raises the version of a tensor that is written.

    Autograd then refuses a backward() that needs the old numbers.
    """
    if not tensor.is_inference():
        tensor.detach().as_strided_((0,), (1,))  # changes a view's shape, and no number


class StorageWatch:
    """Shows whether a storage lives, without keeping it alive."""

    def __init__(self, storage: Any) -> None:
        self._type = type(storage)
        self._reference = storage._weak_ref()

    def ended(self) -> bool:
        """Whether the storage's memory was freed."""
        return bool(self._type._expired(self._reference))

    def __del__(self) -> None:
        self._type._free_weak_ref(self._reference)
