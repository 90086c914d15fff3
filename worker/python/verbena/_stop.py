"""StopSignals: a training loop that ends at a step's end when a signal asks for it."""
from __future__ import annotations

import os
import signal
import types
from typing import Any, Dict, Iterable, Optional


class StopSignals:
    """Ends a training loop after a step at SIGTERM or Ctrl-C, as before preemption.

        with verbena.connect(...) as client, verbena.StopSignals() as stop:
            for step in range(first, steps):
                if stop.requested:
                    break
                ...                            # a whole step
        sys.exit(stop.exit_status)             # 128 + the signal, as verbena-train; 0: none came

    The first signal only sets `requested`: the step is completed, and closing the client then leaves
    the job at once, so that other workers do not wait for its lease. A second one has the effect that
    it had before: SIGTERM ends the process, Ctrl-C raises KeyboardInterrupt. After `with` all have.

    Thread safety: `with` in the main thread, which gets signals; `requested` in any.
    """

    def __init__(self, signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
        """signals: those that end the loop."""
        self._signals = tuple(signals)
        self._before: Dict[int, Any] = {}
        self._signal: Optional[int] = None

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._signal is not None

    @property
    def signal(self) -> Optional[int]:
        """The number of the signal that came first; None: none came."""
        return self._signal

    @property
    def exit_status(self) -> int:
        """128 + the signal's number, by which process managers know the cause; 0: none came."""
        return 0 if self._signal is None else 128 + self._signal

    def __enter__(self) -> "StopSignals":
        """Raises ValueError outside the main thread, as signal.signal()."""
        try:
            for number in self._signals:
                self._before[number] = signal.signal(number, self._on_signal)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        """Gives the signals the effects that they had before."""
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            # None: not set by Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: Optional[types.FrameType]) -> None:
        del frame
        if self._signal is None:
            self._signal = number
            return
        self._restore()
        os.kill(os.getpid(), number)
