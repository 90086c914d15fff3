"""The time that the communication of a DistributedOptimizer takes."""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import List, Sequence, Tuple

from .._core import Handle

_MOST_SPANS = 1 << 16  # more than the buckets of a step


@dataclass(frozen=True)
class Communication:
    """Seconds since the construction of the optimizer; differences are those of some steps."""

    in_flight: float
    """An operation was in flight."""
    exposed: float
    """The training thread waited for an operation."""
    copies: float
    """Hooks copied gradients into buckets, and parameters out of them."""

    @property
    def hidden(self) -> float:
        """Seconds in which an operation was in flight and the training thread did not wait."""
        return max(self.in_flight - self.exposed, 0.0)


class Meter:
    """Adds up the times of a Communication."""

    def __init__(self) -> None:
        self.copies = 0.0
        self._exposed = 0.0
        self._in_flight = 0.0
        self._spans: List[Tuple[float, float]] = []  # of operations since the last fold()

    def wait(self, handle: Handle) -> None:
        """Waits for an operation."""
        start = time.perf_counter()
        try:
            handle.wait()
        finally:
            now = time.perf_counter()
            self._exposed += now - start

    def ended(self, start: float, handles: Sequence[Handle]) -> None:
        """Counts ended operations that were called from `start` on, in time.perf_counter()."""
        self._spans.append((start, start + max(handle.elapsed for handle in handles)))
        if len(self._spans) == _MOST_SPANS:
            self.fold()

    def fold(self) -> None:
        """Adds up the operations that have ended; those of different steps hardly overlap."""
        end = 0.0
        for first, last in sorted(self._spans):
            self._in_flight += max(last - max(first, end), 0.0)
            end = max(end, last)
        self._spans.clear()

    def read(self) -> Communication:
        self.fold()
        return Communication(self._in_flight, self._exposed, self.copies)
