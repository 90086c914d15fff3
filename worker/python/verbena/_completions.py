"""Callbacks, futures and asyncio for handles.

Threads of the library never wait for the GIL. They queue an operation that has ended; one Python
thread takes it from the queue and runs its callbacks.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from typing import Any, Generator, Optional

from . import _core

_lock = threading.Lock()
_thread: Optional[threading.Thread] = None


def start() -> None:
    """Starts the thread of completions; the extension calls this before it queues anything."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_core.run_completions, name="verbena-completions",
                                       daemon=True)
            _thread.start()


def stop() -> None:
    """Ends the thread after the callbacks that are due."""
    with _lock:
        thread = _thread
    if thread is not None:
        _core.stop_completions()
        thread.join()


def _after_fork() -> None:
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _core.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def future_of(handle: _core.Handle) -> concurrent.futures.Future[Any]:
    """Handle.get_future()."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def finish(ended: _core.Handle) -> None:
        if not future.set_running_or_notify_cancel():
            return
        error = ended.exception()
        if error is None:
            future.set_result(ended.wait())
        else:
            future.set_exception(error)

    def cancel_too(ended: concurrent.futures.Future[Any]) -> None:
        if ended.cancelled():
            handle.cancel()

    future.add_done_callback(cancel_too)
    handle.add_done_callback(finish)
    return future


def await_handle(handle: _core.Handle) -> Generator[Any, None, Any]:
    """Handle.__await__()."""
    return asyncio.wrap_future(future_of(handle)).__await__()
