"""local_cluster(): daemons on this host, for tests, notebooks and examples."""
from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from . import _core
from ._memory import usable_memory

_log = logging.getLogger("verbena")
# Until stop(), also those that the script has dropped.
_running: "Set[LocalCluster]" = set()

_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_LOG_LINES = 15
_LEAST_MEMORY_LIMIT = 64 << 20  # of verbenad


def find_program(name: str) -> str:
    """The path of verbenad, or of another program that is installed with it.

    $VERBENA_VERBENAD names verbenad, and the others are beside it. Otherwise looks into the package,
    near the library, and into $PATH. Raises FileNotFoundError with these places.
    """
    named = os.environ.get("VERBENA_VERBENAD")
    if named:
        program = shutil.which(named)
        if program is None:
            raise FileNotFoundError(f"VERBENA_VERBENAD is {named}, which is not a program; set it to the "
                                    "path of verbenad, or unset it")
        if name == "verbenad":
            return os.path.abspath(program)
    package = os.path.join(os.path.dirname(__file__), "bin", name)
    library = os.path.dirname(os.path.realpath(_core.library_path()))
    places = [os.path.join(os.path.dirname(os.path.realpath(program)), name)] if named and program else []
    places.append(package)
    places += [os.path.join(library, path, name)
               for path in ("../bin", "../../bin", "..")]  # lib, lib/x86_64-linux-gnu, a build folder
    places.append(shutil.which(name) or "")
    for place in places:
        if place and os.access(place, os.X_OK) and os.path.isfile(place):
            return os.path.normpath(place)
    raise FileNotFoundError(f"{name} is not in {os.path.dirname(package)}, near {library}, or in "
                            "$PATH; set VERBENA_VERBENAD to the path of verbenad")


def find_verbenad() -> str:
    """The path of verbenad.

    $VERBENA_VERBENAD names it; otherwise looks into the package, near the library, and into $PATH.
    Raises FileNotFoundError with these places.
    """
    return find_program("verbenad")


class LocalCluster:
    """A coordinator and servers on the loopback interface; local_cluster() returns it.

    It is a context manager, whose end stops the daemons; so does the end of the interpreter. If the
    interpreter is killed, the daemons end by themselves within seconds; processes that it has forked
    without exec() count as part of it.

    `address` is "host:port" of the coordinator, for connect(). `coordinator` and `servers` are their
    processes (subprocess.Popen), for tests that stop one. `directory` has their logs, as NAME.log,
    and is removed at the end.
    """

    address: str
    coordinator: "subprocess.Popen[bytes]"
    servers: List["subprocess.Popen[bytes]"]
    directory: str

    def __init__(self, servers: int, shards: int, replicas: int,
                 options: Sequence[str], server_options: Sequence[str]) -> None:
        self._program = find_verbenad()
        self._owner = os.getpid()
        self.directory = tempfile.mkdtemp(prefix="verbena-")
        self.servers = []
        self._processes: List["subprocess.Popen[bytes]"] = []
        _running.add(self)
        try:
            self._start(servers, shards, replicas, options, server_options)
        except BaseException:
            self.stop()
            raise
        _log.info("a local cluster of %d servers at %s", servers, self.address)

    def _start(self, servers: int, shards: int, replicas: int,
               options: Sequence[str], server_options: Sequence[str]) -> None:
        self.coordinator = self._daemon(
            "coordinator", "--coordinator", "--shards", "0", "--expected-servers", str(servers),
            "--replicas", str(replicas), *options)
        self.address = self._await_ready("coordinator", self.coordinator)["address"]
        if not any(option.split("=")[0] == "--memory-limit" for option in server_options):
            # Each server's default is four fifths of the machine.
            share = max(usable_memory() * 4 // 5 // max(servers, 1), _LEAST_MEMORY_LIMIT)
            server_options = (*server_options, "--memory-limit", str(share))
        for number in range(servers):
            self.servers.append(self._daemon(f"server-{number}", "--join", self.address,
                                             "--shards", str(shards), *server_options))
        for number, server in enumerate(self.servers):
            self._await_ready(f"server-{number}", server)

    def _path(self, name: str, kind: str) -> str:
        return os.path.join(self.directory, f"{name}.{kind}")

    def _daemon(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C is for the script, which then stops the daemons in order. The
        # pipe ends with the script, also when that is killed.
        with open(self._path(name, "log"), "wb") as log:
            process = subprocess.Popen(
                [self._program, "--listen", "127.0.0.1:0", "--name", name,
                 "--ready-file", self._path(name, "ready"), "--stop-at-stdin-end", *arguments],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process)
        return process

    def _await_ready(self, name: str, process: "subprocess.Popen[bytes]") -> Dict[str, str]:
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                with open(self._path(name, "ready"), encoding="utf-8") as file:
                    ready: Dict[str, str] = json.load(file)
                    return ready
            except (FileNotFoundError, json.JSONDecodeError):
                pass  # not yet, or in part
            if process.poll() is not None:
                raise RuntimeError(f"verbenad {name} ended with status {process.returncode} before "
                                   f"it was ready; the end of its log:\n{self._log_end(name)}")
            if time.monotonic() > end:
                raise RuntimeError(f"verbenad {name} was not ready after {_START_SECONDS:.0f} s; "
                                   f"the end of its log:\n{self._log_end(name)}")
            time.sleep(0.01)

    def _log_end(self, name: str) -> str:
        with open(self._path(name, "log"), encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-_LOG_LINES:])

    def stop(self) -> None:
        """Stops the daemons, the servers first, and removes the logs. Again: no effect."""
        if os.getpid() != self._owner:
            return  # a fork: the daemons are the parent's
        end = time.monotonic() + _STOP_SECONDS
        while self._processes:  # an interrupt leaves the rest to the next call
            process = self._processes[-1]
            process.terminate()
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.warning("verbenad (process %d) did not end; it is killed", process.pid)
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()
            if process in self._processes:  # not ended by another thread meanwhile
                self._processes.remove(process)
        _running.discard(self)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        state = f"{len(self.servers)} servers" if self._processes else "stopped"
        return f"<verbena.LocalCluster {getattr(self, 'address', '')} {state}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled or copied: it owns processes; pass its "
                        "`address` to other processes")


def local_cluster(servers: int = 2, shards: int = 1, replicas: int = 1, *,
                  options: Sequence[str] = (), server_options: Optional[Sequence[str]] = None
                  ) -> LocalCluster:
    """Starts daemons on the loopback interface with free ports.

    servers: number of server processes.
    shards: executor threads of each server.
    replicas: of each partition, 1 to 3, at most `servers`.
    options: more options of verbenad for the coordinator, such as ("--lease-ms", "1000").
    server_options: those of the servers; default: none. Without --memory-limit each server has its
        share of four fifths of the memory of the machine or the control group.

    Raises FileNotFoundError if there is no verbenad, RuntimeError with the end of the log if a
    daemon does not start.
    """
    return LocalCluster(servers, shards, replicas, options, server_options or ())


def stop_all() -> None:
    """Stops all clusters of this process."""
    for cluster in list(_running):
        cluster.stop()
