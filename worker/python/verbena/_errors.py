"""Exceptions: Error, and a subclass for each status of the library."""
from __future__ import annotations

from typing import Dict, Type


class Error(Exception):
    """An error of the library or a server.

    The text is the library's: component, object, cause and fix. `code` is the name of its status,
    such as "NOT_FOUND"; each status has a subclass.
    """

    code: str = "UNKNOWN"
    """Name of the status, such as "NOT_FOUND"."""


class CancelledError(Error):
    """Handle.cancel() or Client.close() ended the operation."""

    code = "CANCELLED"


class InvalidArgumentError(Error, ValueError):
    """An argument is wrong; the text has its name, its value and the allowed values."""

    code = "INVALID_ARGUMENT"


class DeadlineExceededError(Error, TimeoutError):
    """The operation, or a wait, did not end in time; the text names the cause."""

    code = "DEADLINE_EXCEEDED"


class NotFoundError(Error):
    """There is no such table."""

    code = "NOT_FOUND"


class AlreadyExistsError(Error):
    """A table of this name has another specification, or the rank is taken."""

    code = "ALREADY_EXISTS"


class PermissionDeniedError(Error):
    """The token does not allow this job or this call."""

    code = "PERMISSION_DENIED"


class ResourceExhaustedError(Error):
    """No memory, here or at a server, or a limit of the job."""

    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(Error):
    """The client is closed, its lease has ended, an observer pushes, or this is a fork."""

    code = "FAILED_PRECONDITION"


class AbortedError(Error):
    """This worker's lease ended; the outcome of the operation is unknown."""

    code = "ABORTED"


class OutOfRangeError(Error):
    """Not used by this version."""

    code = "OUT_OF_RANGE"


class UnimplementedError(Error):
    """This build of the library does not support the call."""

    code = "UNIMPLEMENTED"


class InternalError(Error):
    """A bug in the library or a server."""

    code = "INTERNAL"


class UnavailableError(Error):
    """A server or the coordinator does not respond."""

    code = "UNAVAILABLE"


class DataLossError(Error):
    """The last replica of a partition is lost."""

    code = "DATA_LOSS"


class UnauthenticatedError(Error):
    """TLS verification failed, or the token is not valid."""

    code = "UNAUTHENTICATED"


# By the library's number of the status, for the extension.
BY_NUMBER: Dict[int, Type[Error]] = {
    1: CancelledError,
    2: Error,
    3: InvalidArgumentError,
    4: DeadlineExceededError,
    5: NotFoundError,
    6: AlreadyExistsError,
    7: PermissionDeniedError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    10: AbortedError,
    11: OutOfRangeError,
    12: UnimplementedError,
    13: InternalError,
    14: UnavailableError,
    15: DataLossError,
    16: UnauthenticatedError,
}

# Tracebacks name them as users do.
for _error in {Error, *BY_NUMBER.values()}:
    _error.__module__ = "verbena"
