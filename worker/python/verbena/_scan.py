"""Client.scan(): the library calls back, Python iterates."""
from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple

import numpy as np

if TYPE_CHECKING:
    from ._client import Client
    from ._core import Table

# Batches that wait for the consumer; a batch has at most the rows of one message.
_MOST_WAITING = 4
# Scans that are not at their end: the thread, and the event that ends it.
_readers: Dict[threading.Thread, threading.Event] = {}


def scan_rows(client: Client, table: Table, timeout: Optional[float]
              ) -> Iterator[Tuple[Any, Any]]:
    """Yields pairs of keys and rows, which another thread reads."""
    batches: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
    ended = threading.Event()

    def put(item: Any) -> bool:
        while not ended.is_set():
            try:
                batches.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def read() -> None:
        try:
            client._scan(table, lambda keys, rows: put((keys, rows)), timeout)
            put(None)
        except Exception as error:
            put(error)

    reader = threading.Thread(target=read, name="verbena-scan", daemon=True)
    _readers[reader] = ended
    reader.start()
    try:
        while True:
            batch = batches.get()
            if batch is None:
                return
            if isinstance(batch, Exception):
                raise batch
            keys, rows = batch
            yield (np.frombuffer(keys, np.uint64),
                   np.frombuffer(rows, np.float32).reshape(-1, table.dim))
    finally:
        ended.set()
        reader.join()
        _readers.pop(reader, None)


def stop_all() -> None:
    """Ends the threads of scans whose iterators were not."""
    for reader, ended in list(_readers.items()):
        ended.set()
        reader.join()
