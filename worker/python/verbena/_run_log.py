"""RunLog: the log of a run, which verbena-plot draws."""
from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import threading
import time
from typing import Any, Dict, List, Optional, Union

from ._client import Client
from ._cluster import find_program
from ._errors import Error

_log = logging.getLogger("verbena")

_END_SECONDS = 5.0  # for `verbena shards`, after SIGTERM


def _number(value: float) -> Optional[float]:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


class _Losses:
    """The mean of losses, weighted by examples. Tensors stay on their device until it is needed."""

    def __init__(self) -> None:
        self.sum: Any = 0.0
        self.weight = 0

    def add(self, loss: Any, samples: int) -> None:
        if hasattr(loss, "detach"):
            if loss.numel() != 1:
                raise ValueError(f"loss has the shape {tuple(loss.shape)}; allowed: one number")
            loss = loss.detach().reshape(()).float()
        else:
            loss = float(loss)
        weight = max(samples, 1)
        self.sum = self.sum + loss * weight
        self.weight += weight

    def mean(self) -> float:
        return float(self.sum) / self.weight


class RunLog:
    """Writes the log of a run, as `verbena-train --log` does: lines of JSON for verbena-plot.

        with verbena.RunLog("run.jsonl", client, model="mlp", batch=64) as log:
            for batch, target in loader:
                ...
                log.step(loss, samples=64)
            log.validation(accuracy=0.97)

    verbena.torch.DistributedOptimizer(log=log) calls step() itself; then call add(loss, samples).

    The lines are in docs/reference/json.md: `run`, `progress` at most every `interval` seconds with
    loss, throughput, bytes and, for ssp tables, staleness, `validation`, `shards`, and `result`. One
    worker of a job logs, such as rank 0. The bytes and the staleness are those of its client; loss
    and samples those that it passes.

    It is a context manager. After an exception the log has no `result`. The file is appended to:
    it may have several runs, and processes. When it cannot be written, such as on a full disk, the
    log ends with a warning of logging.getLogger("verbena"), and training continues.

    Thread safety: any thread may call any method.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], client: Optional[Client] = None, *,
                 model: str = "", optimizer: str = "", consistency: str = "",
                 batch: Optional[int] = None, planned_steps: Optional[int] = None,
                 interval: float = 0.5, shards: Optional[float] = None) -> None:
        """Opens the file, or creates it.

        path: of the log; it is appended to.
        client: counts bytes and staleness, and names the job; default: none.
        model, optimizer, consistency: for the title of the plot.
        batch: examples of a step, of all workers together.
        planned_steps: of the run.
        interval: least time between two `progress` lines, in seconds.
        shards: also log the load of each shard, at this interval in seconds: 0.1 and more. It runs
            the program `verbena`, which is looked for beside verbenad and in $PATH, and needs a
            client. When that program fails, a warning says so, and the log goes on without.

        Raises OSError with the path if the file cannot be opened, FileNotFoundError if there is no
        program `verbena`.
        """
        if shards is not None and client is None:
            raise ValueError("shards needs a client, which names the cluster")
        self.path = os.fspath(path)
        self._client = client
        self._interval = interval
        self._names = {"model": model, "optimizer": optimizer, "consistency": consistency}
        self._numbers = {"batch": batch, "planned_steps": planned_steps}
        self._lock = threading.Lock()
        self._closed = self._begun = False
        self._steps = self._samples = 0
        self._losses = _Losses()
        self._loss: Optional[float] = None  # of the last progress
        self._counters: Dict[str, Any] = {}
        self._logged: Dict[str, Any] = {"steps": 0, "samples": 0, "seconds": 0.0, "staleness": []}
        program = None if shards is None else find_program("verbena")
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise OSError(error.errno, f"RunLog: cannot open the log: {error.strerror}", self.path) from None
        self._start = time.monotonic()
        self._end_time: Optional[float] = None
        self._watch: Optional[_ShardWatch] = None
        if program is not None and client is not None and shards is not None:
            self._watch = _ShardWatch(program, client, shards, self)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(kind is None)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._steps} steps"
        return f"<verbena.RunLog {self.path!r} {state}>"

    def describe(self, *, optimizer: str = "", consistency: str = "") -> None:
        """Gives names that were not given before the first line; DistributedOptimizer calls it."""
        with self._lock:
            for name, value in (("optimizer", optimizer), ("consistency", consistency)):
                self._names[name] = self._names[name] or value

    def add(self, loss: Any = None, samples: int = 0) -> None:
        """Adds to the step that comes: its loss, and the number of its examples.

        loss: a number, or a tensor with one, whose device it does not wait for; the mean of an
            example.

        Raises ValueError after close(), or for a loss with more than one number.
        """
        with self._lock:
            self._add(loss, samples)

    def step(self, loss: Any = None, samples: int = 0) -> None:
        """Ends a step, after add(loss, samples). Writes a line when it is time to; cheap otherwise."""
        with self._lock:
            self._add(loss, samples)
            self._steps += 1
            self._begin()
            if self._seconds() - self._logged["seconds"] >= self._interval:
                self._progress()

    def validation(self, *, examples: Optional[int] = None, auc: Optional[float] = None,
                   accuracy: Optional[float] = None, bits_per_byte: Optional[float] = None,
                   best: bool = False) -> None:
        """Writes measures on test data. best: better than all before in this run."""
        measures = {"auc": auc, "accuracy": accuracy, "bits_per_byte": bits_per_byte}
        with self._lock:
            self._check_open()
            self._begin()
            self._write({"event": "validation", "step": self._steps, "examples": examples or 0,
                         **{name: _number(float(value)) for name, value in measures.items()
                            if value is not None}, "best": bool(best)})

    def close(self) -> None:
        """Writes the last `progress` and the `result`. A second call has no effect."""
        self._end(True)

    # ---- lines ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"RunLog {self.path} is closed")

    def _add(self, loss: Any, samples: int) -> None:
        self._check_open()
        if loss is not None:
            self._losses.add(loss, samples)
        self._samples += samples

    def _seconds(self) -> float:
        return (time.monotonic() if self._end_time is None else self._end_time) - self._start

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        client = self._client
        self._write({"event": "run", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                     "job": "" if client is None else client.job, "format": "python", **self._names,
                     "workers": self._workers(),
                     **{name: value for name, value in self._numbers.items() if value is not None}})

    def _workers(self) -> int:
        return 1 if self._client is None else self._client.expected_workers

    def _count(self) -> Dict[str, Any]:
        """The client's counters; when it is closed, the last ones."""
        if self._client is not None and not self._client.closed:
            try:
                self._counters = self._client.statistics()
            except Error:  # closed meanwhile, or a fork
                pass
        return self._counters

    def _staleness(self) -> Optional[float]:
        """Mean over the pulls of ssp tables since the previous line; None: there were none."""
        now: List[int] = self._count().get("staleness", [])
        before = self._logged["staleness"] or [0] * len(now)
        pulls = [b - a for a, b in zip(before, now)]
        self._logged["staleness"] = now
        return sum(i * n for i, n in enumerate(pulls)) / sum(pulls) if sum(pulls) > 0 else None

    def _progress(self) -> None:
        seconds, counters = self._seconds(), self._count()
        passed = seconds - self._logged["seconds"]
        line = {"event": "progress", "step": self._steps, "seconds": seconds, "samples": self._samples,
                "samples_per_s": (self._samples - self._logged["samples"]) / passed if passed > 0 else 0.0}
        if self._losses.weight > 0:
            self._loss = self._losses.mean()
            self._losses = _Losses()
            line["loss"] = _number(self._loss)
        line.update(bytes_pushed=counters.get("bytes_pushed", 0),
                    bytes_pulled=counters.get("bytes_pulled", 0))
        staleness = self._staleness()
        if staleness is not None:
            line["staleness"] = staleness
        self._logged.update(steps=self._steps, samples=self._samples, seconds=seconds)
        self._write(line)

    def _result(self) -> None:
        seconds, counters = self._seconds(), self._count()
        line: Dict[str, Any] = {
            "event": "result", "samples_per_s": self._samples / seconds if seconds > 0 else 0.0,
            "bytes_pushed": counters.get("bytes_pushed", 0),
            "bytes_pulled": counters.get("bytes_pulled", 0), "steps": self._steps,
            "samples": self._samples, "seconds": seconds, "workers": self._workers(),
            "format": "python", **self._names}
        if self._loss is not None:
            line["loss"] = _number(self._loss)
        self._write(line)

    def _end(self, succeeded: bool) -> None:
        watch, self._watch = self._watch, None
        if self._end_time is None:
            self._end_time = time.monotonic()  # waiting for the watch is not training
        if watch is not None:
            watch.stop()  # without the lock, for which its thread may wait
        with self._lock:
            if self._closed:
                return
            self._begin()
            if self._steps > self._logged["steps"]:
                self._progress()
            if succeeded:
                self._result()
            self._closed = True
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _write(self, line: Dict[str, Any]) -> None:
        if self._fd < 0:
            return
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        try:
            written = os.write(self._fd, data)  # one write, so that lines of processes do not mix
            problem = "" if written == len(data) else "no room for a line"
        except OSError as error:
            written, problem = 0, str(error.strerror)
        if not problem:
            return
        if written > 0:
            self._remove_end(written)
        _log.warning("RunLog %s: cannot write: %s; the log ends here, and training continues",
                     self.path, problem)
        os.close(self._fd)
        self._fd = -1

    def _remove_end(self, count: int) -> None:
        """Removes a partial line, before which the next run would not be read; unless others have written."""
        try:
            end = os.lseek(self._fd, 0, os.SEEK_CUR)
            if os.fstat(self._fd).st_size == end:
                os.ftruncate(self._fd, end - count)
        except OSError:
            pass  # no regular file

    def _shards(self, line: Dict[str, Any]) -> None:
        with self._lock:
            if not self._closed:
                self._begin()
                self._write({"event": "shards", **line})


class _ShardWatch:
    """The program `verbena shards --watch --json`, whose lines a thread logs."""

    def __init__(self, program: str, client: Client, interval: float, log: RunLog) -> None:
        command = [program, "shards", "--cluster", client.cluster, "--watch", repr(float(interval)), "--json"]
        for option in ("tls_ca", "tls_cert", "tls_key", "token_file"):
            value = client._options.get(option)
            if value is not None:
                command += ["--" + option.replace("_", "-"), value]
        self._run_log = log
        self._stopped = False
        self._interval = interval
        self._first = threading.Event()  # a line has come, or none will
        # A session of its own: Ctrl-C is for the script. It ends by SIGPIPE with this process.
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, start_new_session=True)
        self._thread = threading.Thread(target=self._read, name="verbena-shards", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        last, warned = "", False
        for data in self._process.stdout:
            try:
                line = json.loads(data)
            except ValueError:
                last = data.decode(errors="replace").strip()
                if not warned:
                    warned = True
                    _log.warning("RunLog %s: load of the shards: %s", self._run_log.path, last)
                continue
            self._run_log._shards(line)
            self._first.set()
        self._first.set()
        status = self._process.wait()
        if not self._stopped:
            _log.warning("RunLog %s: `verbena shards` ended with status %d: %s; the log has no load of "
                         "the shards from here on", self._run_log.path, status, last)

    def stop(self) -> None:
        # A short run has the load of its first interval, too.
        self._first.wait(self._interval + _END_SECONDS)
        self._stopped = True
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
