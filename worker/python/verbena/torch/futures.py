"""Handles as futures of PyTorch."""
from __future__ import annotations

from typing import Callable

import torch

from .._core import Handle


def torch_future(handle: Handle, result: Callable[[], torch.Tensor]
                 ) -> "torch.futures.Future[torch.Tensor]":
    """A torch.futures.Future that ends with the operation.

    result: called on the thread of completions when the operation has succeeded.
    """
    future: "torch.futures.Future[torch.Tensor]" = torch.futures.Future()

    def finish(ended: Handle) -> None:
        try:
            error = ended.exception()
            if error is None:
                future.set_result(result())
            else:
                future.set_exception(error)  # type: ignore[arg-type]
        except Exception as failure:  # of result(): the waiting thread must learn of it
            future.set_exception(failure)  # type: ignore[arg-type]

    handle.add_done_callback(finish)
    return future
