"""Verbena, a parameter server over RDMA verbs, for Python.

    with verbena.local_cluster() as cluster, verbena.connect(cluster, job="demo") as client:
        table = client.table("weights", shape=(1000,), optimizer="sgd", rate=0.1)
        gradient, weights = client.empty(table.shape), client.empty(table.shape)
        for step in range(10):
            gradient[:] = weights - 1
            client.push_pull(table, gradient, weights).wait()

connect() joins a job, and Client has the calls; each returns a Handle. verbena.torch is for PyTorch,
verbena.plot draws a RunLog. Errors are subclasses of Error; logging.getLogger("verbena") has the log.

docs/python.md is the guide, docs/reference/python.md the reference.
"""
from . import _exit  # noqa: F401: it registers the end of the interpreter
from ._client import Client, connect, table_options
from ._cluster import LocalCluster, find_verbenad, local_cluster
from ._core import Handle, Table
from ._core import version as _version
from ._errors import (AbortedError, AlreadyExistsError, CancelledError, DataLossError,
                      DeadlineExceededError, Error, FailedPreconditionError, InternalError,
                      InvalidArgumentError, NotFoundError, OutOfRangeError, PermissionDeniedError,
                      ResourceExhaustedError, UnauthenticatedError, UnavailableError,
                      UnimplementedError)
from ._run_log import RunLog
from ._stop import StopSignals

__version__ = _version()

__all__ = [
    "AbortedError", "AlreadyExistsError", "CancelledError", "Client", "DataLossError",
    "DeadlineExceededError", "Error", "FailedPreconditionError", "Handle", "InternalError",
    "InvalidArgumentError", "LocalCluster", "NotFoundError", "OutOfRangeError",
    "PermissionDeniedError", "ResourceExhaustedError", "RunLog", "StopSignals", "Table", "UnauthenticatedError",
    "UnavailableError", "UnimplementedError", "connect", "find_verbenad", "local_cluster",
    "table_options",
]


def __dir__() -> "list[str]":
    """The public names, and modules that were imported."""
    return sorted(name for name in globals() if not name.startswith("_") or name.endswith("__"))
