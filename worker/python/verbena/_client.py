"""connect() and Client."""
from __future__ import annotations

import difflib
import logging
import math
import numbers
import os
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import numpy as np

from . import _core
from ._arguments import (check_init, check_integer, check_range, check_text, check_texts,
                         staleness_ms)
from ._cluster import LocalCluster
from ._core import Handle, Table
from ._errors import Error
from ._scan import scan_rows
from ._sequences import integers

_log = logging.getLogger("verbena")
_open_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()

Shape = Union[int, Iterable[int]]

# NumPy has no bfloat16: its bits are uint16.
_NUMPY_TYPES = {"f32": "float32", "bf16": "uint16", "f16": "float16"}
_DEFAULT_CLUSTER = "127.0.0.1:7000"
# Options of connect() that environment variables may set, those of the program `verbena`.
_ENVIRONMENT = ("tls_ca", "tls_cert", "tls_key", "token_file")
_INITIALIZERS = ("zeros", "constant", "uniform", "normal")


def _option_text(value: Any) -> str:
    """A value of a table option as the library reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={float(number)!r}" for name, number in value.items())
    if isinstance(value, (str, numbers.Integral)):
        return str(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    return ",".join(_option_text(element) for element in value)


class _Options:
    """Table options by keyword, from the library's descriptors."""

    def __init__(self) -> None:
        self.names: Dict[str, str] = {
            option["keyword"]: option["name"] for option in _core.table_options()}

    def settings(self, given: Mapping[str, Any]) -> List[Tuple[str, str]]:
        """Names and texts of the options that are not None."""
        found = []
        for keyword, value in given.items():
            if keyword not in self.names:
                near = difflib.get_close_matches(keyword, self.names, n=3, cutoff=0.4)
                hint = f"; the nearest: {', '.join(near)}" if near else ""
                raise TypeError(f"table() has no option '{keyword}'{hint}. "
                                "help(verbena.table_options) lists all")
            if value is not None:
                check_texts({keyword: value})
                try:
                    found.append((self.names[keyword], _option_text(value)))
                except (TypeError, ValueError) as error:
                    raise TypeError(f"{keyword} is {value!r}; allowed: a word, a number, or a "
                                    "sequence or dict of numbers") from error
        return found


_options: Optional[_Options] = None


def _settings(given: Mapping[str, Any]) -> List[Tuple[str, str]]:
    global _options
    if _options is None:
        _options = _Options()
    return _options.settings(given)


def table_options() -> List[Dict[str, str]]:
    """Lists all options of Client.table().

    A dict for each: `keyword`, `name` (in other interfaces), `type`, `unit`, `allowed`, `default`,
    `applies_to` and `meaning`. docs/reference/table-options.md has the same by name.
    """
    return _core.table_options()


class Client(_core.Client):
    """A worker or observer of a job; connect() returns it. It is a context manager.

    Methods that start an operation return a Handle at once. They raise TypeError or ValueError for
    an argument that they refuse, and an Error if the operation cannot be started.

    Arrays are NumPy arrays, objects with the buffer protocol or `__dlpack__`, and PyTorch tensors
    on a CPU or a CUDA GPU, C-contiguous. None is copied: servers on other hosts read and write the
    memory itself, and over shared memory arrays of empty() need no copy either. Memory is
    registered at its first use and stays registered as long as its storage lives. An operation
    keeps its arrays alive; do not change an array before the operation that reads it has ended.

    Thread safety: any thread may call any method. Concurrent pushes to one table must not overlap.
    After a fork the child's calls raise FailedPreconditionError; the parent is not affected.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        check_texts(options)
        super().__init__(dict(options))
        self._options = dict(options)
        self.elastic = bool(options.get("max_workers"))
        _open_clients.add(self)
        _log.info("connected to %s as rank %d", self.cluster, self.rank)

    @property
    def cluster(self) -> str:
        """Address of the coordinator, as given."""
        return str(self._options["cluster"])

    @property
    def job(self) -> str:
        """Name of the job."""
        return str(self._options.get("job", "default"))

    @property
    def expected_workers(self) -> int:
        """Number of workers of the job, as given."""
        return int(self._options.get("expected_workers", 1))

    def __repr__(self) -> str:
        if self.closed:
            state = "closed"
        else:
            try:
                rank = self.rank
                state = "observer" if rank < 0 else f"rank {rank}"
            except Error:  # a fork
                state = "of another process"
        return f"<verbena.Client {self.cluster} job {self.job!r} {state}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled or copied: it is a connection of this process; "
                        "call verbena.connect() in each process")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- tables ---------------------------------------------------------------------------------

    def table(self, name: str, *, shape: Optional[Shape] = None, dim: Optional[int] = None,
              optimizer: Optional[str] = None, rate: Optional[float] = None,
              consistency: Optional[str] = None, init: Any = None,
              timeout: Optional[float] = None, **options: Any) -> Table:
        """Creates a table, or opens the existing table if its specification is the same.

        name: 1 to 128 characters of [A-Za-z0-9_./-].
        shape: dimensions of a dense table; default: those of an array in `init`.
        dim: numbers in a row of an embedding table, which has a row for each uint64 key.
        optimizer: "sgd" (default), "momentum", "adam", ...; `parameters={"beta1": 0.9}` sets its
            parameters.
        rate: learning rate; default 0.
        consistency: "sync" (default), "async" or "ssp".
        init: a word ("zeros", "normal", ...), a tuple of the word and its numbers
            (("normal", mean, deviation), ("uniform", low, high), ("constant", value)), or an array
            or tensor with the parameters. With an array in a sync table every worker of the job
            makes this call, which ends one step: the array of rank 0 is assigned. In other tables
            rank 0 assigns, and the call of others does not wait for it. A worker that has joined a
            run of an elastic job assigns nothing to a sync table of the run.
        options: every other table option by keyword, such as push_codec="int8"; table_options()
            lists them.
        timeout: seconds; default: the client's.

        Raises TypeError for an unknown option, InvalidArgumentError for a wrong value,
        AlreadyExistsError if the existing table differs.
        """
        array = None
        if init is not None:
            array = self._read_init(init, options)
        if array is not None and shape is None and dim is None:
            shape = tuple(array.shape)
        if isinstance(shape, np.integer):
            shape = int(shape)
        if isinstance(shape, int):
            shape = (shape,)
        if shape is not None:
            shape = tuple(shape)
        if array is not None:
            check_init(array, shape, dim, options.get("dtype"))
        made = self._create_table(_settings({
            "name": name, "shape": shape, "dim": dim,
            "optimizer": optimizer, "rate": rate, "consistency": consistency, **options}), timeout)
        if array is not None:
            self._assign_first(made, array, timeout)
        return made

    def open_table(self, name: str, *, timeout: Optional[float] = None) -> Table:
        """Opens an existing table. Raises NotFoundError if there is none."""
        check_text("name", name)
        return super().open_table(name, timeout=timeout)

    def drop_table(self, name: str, *, timeout: Optional[float] = None) -> None:
        """Drops the table and its parameters.

        Operations of all workers on it end with NotFoundError.
        """
        check_text("name", name)
        super().drop_table(name, timeout=timeout)

    @staticmethod
    def _read_init(init: Any, options: Dict[str, Any]) -> Any:
        """Puts an initializer into `options`, or returns the array."""
        words = (init,) if isinstance(init, str) else init
        if not isinstance(words, tuple) or not words or not isinstance(words[0], str):
            return init if hasattr(init, "shape") else np.asarray(init, dtype=np.float32)
        kind, values = words[0], words[1:]
        if kind not in _INITIALIZERS or len(values) > 2:
            raise ValueError(f"init is {init!r}; allowed: an array, or one of "
                             f"{', '.join(_INITIALIZERS)} with up to two numbers")
        options["initializer"] = kind
        options.update(zip(("initializer_a", "initializer_b"), values))
        return None

    def _assign_first(self, table: Table, array: Any, timeout: Optional[float]) -> None:
        if table.consistency == "sync" and self.first_step(table) > 0:
            return  # the run that this worker has joined has done it
        handles = []
        if self.rank == 0:
            handles.append(self.assign(table, array, timeout=timeout))
        if table.consistency == "sync":
            handles.append(self.end_step(table, timeout=timeout))
        for handle in handles:
            handle.wait()

    # ---- memory ---------------------------------------------------------------------------------

    def empty(self, shape: Shape, dtype: Any = "float32") -> "np.ndarray[Any, np.dtype[Any]]":
        """Allocates an array in memory that servers on this host share; it is zeroed.

        shape: an int or a sequence of ints.
        dtype: of NumPy, or "f32", "f16", "bf16" (the array is then of uint16).

        Raises ResourceExhaustedError without memory.
        """
        kind = np.dtype(_NUMPY_TYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype)
        dimensions = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        for size in dimensions:
            check_integer("shape", size, greatest=2**62)
        count = math.prod(int(size) for size in dimensions)
        check_integer("shape", count * kind.itemsize, greatest=2**62)
        if count == 0:
            return np.empty(dimensions, kind)
        region: Any = self._allocate(count * kind.itemsize)
        return np.frombuffer(region, dtype=kind).reshape(dimensions)

    # ---- data -----------------------------------------------------------------------------------

    def pull(self, table: Table, destination: Any = None, *, first: int = 0,
             count: Optional[int] = None, min_version: Optional[int] = None,
             read_from: str = "primary", max_staleness: float = 2.0,
             timeout: Optional[float] = None) -> Handle:
        """Pulls parameters into `destination`, an array of table.dtype; wait() returns it.

        destination: default: a new array of empty(), with the table's shape if the range is the
            whole table.
        first, count: the range in elements; it starts at a multiple of table.chunk_elements.
        min_version: the pull waits for this version or a later one; default for sync: the number
            of steps that this worker has ended.
        read_from: "any": in an observer, followers share the reads of dense sync and async tables.
            Their values are never older than the last ones that this client has read in this run
            of the job, and are never lost in a failover. Otherwise, with "primary", and for chunks
            that have just changed, the primary answers.
        max_staleness: seconds; with "any": maximum age of a follower's values, which the primary
            had at that time before the call, or later. Less than four tenths of the cluster's lease
            sends most pulls to the primary.
        timeout: seconds until the operation ends with DeadlineExceededError.
        """
        check_range(first, count, min_version)
        staleness = staleness_ms(read_from, max_staleness)
        if destination is None:
            whole = first == 0 and count is None
            elements = table.elements - first if count is None else count
            destination = self.empty(table.shape if whole else elements, table.dtype)
        return self._pull(table, destination, first=first, count=count, min_version=min_version,
                          max_staleness_ms=staleness, timeout=timeout)

    def pull_state(self, table: Table, array: str, destination: Any = None, *, first: int = 0,
                   count: Optional[int] = None, min_version: Optional[int] = None,
                   timeout: Optional[float] = None) -> Handle:
        """Pulls an array of the optimizer's state into `destination`; wait() returns it.

        array: its name, one of table.state_arrays.
        destination: float32; default: a new array of empty(), with the table's shape if the range
            is the whole table.
        first, count, min_version, timeout: as pull(). A worker that pulls parameters and state of
            a sync table before it ends its next step has those of one step.

        Handle.state_versions() has the count of applies, which is the `step` of torch.optim.
        Raises InvalidArgumentError for an array that the table does not have, and for embedding
        tables.
        """
        check_range(first, count, min_version)
        check_text("array", array)
        if destination is None:
            whole = first == 0 and count is None
            elements = table.elements - first if count is None else count
            destination = self.empty(table.shape if whole else elements)
        return self._pull_state(table, array, destination, first=first, count=count,
                                min_version=min_version, timeout=timeout)

    def lookup(self, table: Table, keys: Any, rows: Any = None, *,
               min_version: Optional[int] = None, timeout: Optional[float] = None) -> Handle:
        """Looks up rows of an embedding table; wait() returns `rows`.

        keys: up to 4194304 uint64 or int64 (with the same bits); they may repeat.
        rows: float32 [len(keys), dim], or any shape with as many elements; default: a new array.

        A missing row is not created; its initial value is returned.
        """
        if rows is None:
            keys = _with_size(keys, "keys")
            rows = self.empty((keys.size, table.dim))
        return self._lookup(table, keys, rows, min_version=min_version, timeout=timeout)

    def lookup_bags(self, table: Table, keys: Any, offsets: Any, sums: Any = None, *,
                    weights: Any = None, mode: str = "sum", min_version: Optional[int] = None,
                    timeout: Optional[float] = None) -> Handle:
        """Looks up rows and combines them by bag on the servers; wait() returns `sums`.

        Bag i has the keys from keys[offsets[i]] up to keys[offsets[i + 1]], the last bag up to the
        end; offsets[0] is 0, as in torch.nn.EmbeddingBag.

        sums: float32 [len(offsets), dim]; default: a new array.
        weights: a float32 factor for the row of each key; default: 1.
        mode: "sum", "mean" or "sqrtn".
        """
        if sums is None:
            offsets = _with_size(offsets, "offsets")
            sums = self.empty((offsets.size, table.dim))
        return self._lookup_bags(table, keys, offsets, sums, weights=weights, mode=mode,
                                 min_version=min_version, timeout=timeout)

    def scan(self, table: Table, *, timeout: Optional[float] = None
             ) -> Iterator[Tuple["np.ndarray[Any, np.dtype[np.uint64]]",
                                 "np.ndarray[Any, np.dtype[np.float32]]"]]:
        """Iterates over all rows of an embedding table: pairs of keys [n] and rows [n, dim].

        timeout: seconds of each wait for more rows.

        The order is free. It is not a snapshot: concurrent pushes are visible in some rows and not
        in others.
        """
        return scan_rows(self, table, timeout)

    def set_optimizer(self, table: Table, *, rate: Optional[float] = None,
                      timeout: Optional[float] = None, **parameters: float) -> Handle:
        """Changes the rate or named parameters of the table's optimizer; others stay.

        sync: in force from the open step on, or from the next one if this worker has pushed to the
        table in the open step. async, ssp: at once. For learning-rate schedulers: call it each
        step, and do not wait.
        """
        check_texts({"parameters": parameters})
        return self._set_optimizer(table, rate, list(parameters.items()), timeout)


def _with_size(numbers: Any, name: str) -> Any:
    """The same integers, with a `size`. name: of the argument, for errors."""
    if isinstance(numbers, np.ndarray):
        return numbers
    if hasattr(numbers, "__dlpack__"):
        return np.from_dlpack(numbers)
    try:
        return np.asarray(memoryview(numbers))
    except TypeError:
        return integers(numbers, name)


def connect(cluster: Any = None, *, job: Optional[str] = None, name: Optional[str] = None,
            rank: Optional[int] = None, expected_workers: Optional[int] = None,
            max_workers: Optional[int] = None,
            observer: Optional[bool] = None, transport: Optional[str] = None,
            timeout: Optional[float] = None, progress: Optional[str] = None,
            staging_bytes: Optional[int] = None, rdma_device: Optional[str] = None,
            rdma_address: Optional[str] = None, rdma_gid_index: Optional[int] = None,
            rdma_traffic_class: Optional[int] = None, rdma_service_level: Optional[int] = None,
            rdma_path_mtu: Optional[int] = None, rdma_timeout: Optional[int] = None,
            rdma_retries: Optional[int] = None, rdma_memory_windows: Optional[bool] = None,
            rdma_relaxed_ordering: Optional[bool] = None, rdma_gpu_direct: Optional[str] = None,
            ofi_provider: Optional[str] = None, ofi_address: Optional[str] = None,
            tls_ca: Optional[str] = None, tls_cert: Optional[str] = None,
            tls_key: Optional[str] = None, token_file: Optional[str] = None) -> Client:
    """Joins a job of a cluster.

    cluster: "host:port" of the coordinator, or of several ("a:7000,b:7000"), or a LocalCluster;
        default: $VERBENA_CLUSTER, else "127.0.0.1:7000", as of the program `verbena`.
    job: workers of one job share its tables and step clock; default "default".
    name: shown to operators; default host-pid.
    rank: gradients are summed in rank order; default: any free rank.
    expected_workers: number of workers of the job, the same for all of them; default 1. Step 0 of
        sync tables waits until so many workers have joined.
    max_workers: the job is elastic, with up to so many workers; the same for all of them; default:
        it is not. Beyond expected_workers, workers join a run, also in place of those that have
        left: connect() waits until a worker of the run has answered, and each sync table has a
        first step that counts the new worker (Client.first_step()).
    observer: may pull from any job's tables and takes part in no step.
    transport: "auto" (default); or "shm", "verbs" or "ofi", without a fallback.
    timeout: default deadline of every call, in seconds; default 30.
    progress: "background" (default): a thread processes completions while none waits; "caller":
        waiting threads only, so callbacks and futures need one that waits.
    staging_bytes: staging memory for rows and pulls without shared memory; default 16 MiB.
    rdma_device: "mlx5_0" or "mlx5_0:1" (device:port); "mlx5_0,mlx5_1": two rails.
    rdma_address: local IP address, or a list for rails; default: the first of the device.
    rdma_gid_index: default -1: the index of the address.
    rdma_traffic_class: 0 to 255; default -1: the system's.
    rdma_service_level: 0 to 15; default -1: the path's.
    rdma_path_mtu: 256, 512, 1024, 2048 or 4096 bytes; default 0: the path's.
    rdma_timeout: 1 to 31: the ACK timeout is 4.096 us x 2^N.
    rdma_retries: 0 to 7: the retry count.
    rdma_memory_windows: memory windows where the device has them; default True.
    rdma_relaxed_ordering: PCIe relaxed ordering where that is safe; default True.
    rdma_gpu_direct: "auto" (default), "off" or "required".
    ofi_provider: libfabric provider; default "tcp;ofi_rxm".
    ofi_address: local IP address, or a list for rails.
    tls_ca: CA bundle (PEM) that verifies servers; turns TLS on; default: $VERBENA_TLS_CA.
    tls_cert, tls_key: this worker's certificate and private key (PEM), for mutual TLS; default:
        $VERBENA_TLS_CERT and $VERBENA_TLS_KEY.
    token_file: file with this job's token; default: $VERBENA_TOKEN_FILE.

    A LocalCluster has no TLS and no tokens: for it these variables have no effect.

    Raises InvalidArgumentError, UnavailableError (nothing responds at `cluster`, or the named
    transport is not available), AlreadyExistsError (for all of `timeout` the rank is taken,
    or the job has all its workers; the place of one that was killed is free after its lease),
    FailedPreconditionError (a worker of this run has left it), UnauthenticatedError or
    PermissionDeniedError.
    """
    options = {keyword: value for keyword, value in locals().items() if value is not None}
    if cluster is None:
        cluster = os.environ.get("VERBENA_CLUSTER") or _DEFAULT_CLUSTER
    if not isinstance(cluster, LocalCluster):
        for option in _ENVIRONMENT:
            value = os.environ.get(f"VERBENA_{option.upper()}")
            if value:
                options.setdefault(option, value)
    options["cluster"] = str(getattr(cluster, "address", cluster))
    return Client(options)


def close_all() -> None:
    """Closes all clients of this process."""
    for client in list(_open_clients):
        try:
            client.close()
        except Exception:  # the interpreter ends in any case
            _log.exception("closing a client")


# A forked child has none of the parent's clients.
os.register_at_fork(after_in_child=_open_clients.clear)
