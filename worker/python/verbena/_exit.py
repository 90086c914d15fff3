"""The end of the interpreter: nothing of the library is in a call or a callback then."""
from __future__ import annotations

import atexit

from . import _client, _cluster, _completions, _core, _scan


@atexit.register
def _end() -> None:
    _client.close_all()
    _completions.stop()
    _scan.stop_all()
    _core.end_of_interpreter()
    _cluster.stop_all()
