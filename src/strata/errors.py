"""All errors that Strata raises on purpose, and the table of their HTTP and gRPC status.

    StrataError
    ├── InvalidArgument      the request is invalid in every state
    │   └── SettingError     a setting is unknown or has a wrong value
    ├── LimitExceeded        a payload is larger than its limit
    ├── Unauthenticated      no valid token
    ├── PermissionDenied     the caller is known but not allowed
    ├── NotFound             the thing named does not exist
    ├── AlreadyExists        the thing named exists and is different
    ├── Conflict             another writer won; read again and retry
    ├── Fenced               message from an old incarnation
    ├── NotAllowedNow        not allowed in the present state
    │   └── TaskEnded        the task is completed or stopped and needs no more workers
    ├── Overloaded           a queue is full; try again after `retry_after_s`
    ├── Unavailable          the other side is unreachable or starting
    │   └── NotLeading       another coordinator leads, or took over
    ├── DeadlineExceeded     it took longer than allowed
    ├── Corrupt              stored data is damaged
    └── UnknownKind          a log written by a newer version

In this order: mistakes of the caller, conflicts with the state of the cluster, failures of network
and disk. A bug is an `assert`, never one of these.
"""

from typing import ClassVar, NamedTuple

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are malformed, not UTF-8, or nested too deeply."""


class StrataError(Exception):
    """An error with a one-sentence message and a hint that says what to do next."""

    code: ClassVar[str] = "error"  # stable, because callers compare it

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidArgument(StrataError):
    code = "invalid_argument"


class SettingError(InvalidArgument):
    code = "setting_error"


class LimitExceeded(StrataError):
    code = "limit_exceeded"


class Unauthenticated(StrataError):
    code = "unauthenticated"


class PermissionDenied(StrataError):
    code = "permission_denied"


class NotFound(StrataError):
    code = "not_found"


class AlreadyExists(StrataError):
    code = "already_exists"


class Conflict(StrataError):
    code = "conflict"


class Fenced(StrataError):
    code = "fenced"


class NotAllowedNow(StrataError):
    code = "not_allowed_now"


class TaskEnded(NotAllowedNow):
    code = "task_ended"


class Overloaded(StrataError):
    code = "overloaded"

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class Unavailable(StrataError):
    code = "unavailable"


class NotLeading(Unavailable):
    code = "not_leading"


class DeadlineExceeded(StrataError):
    code = "deadline_exceeded"


class Corrupt(StrataError):
    code = "corrupt"


class UnknownKind(StrataError):
    code = "unknown_kind"


class ErrorStatus(NamedTuple):
    """HTTP status and name of the gRPC status code of an error."""

    http: int
    grpc: str


STATUS: dict[type[StrataError], ErrorStatus] = {
    StrataError: ErrorStatus(500, "INTERNAL"),
    InvalidArgument: ErrorStatus(400, "INVALID_ARGUMENT"),
    SettingError: ErrorStatus(400, "INVALID_ARGUMENT"),
    LimitExceeded: ErrorStatus(413, "RESOURCE_EXHAUSTED"),
    Unauthenticated: ErrorStatus(401, "UNAUTHENTICATED"),
    PermissionDenied: ErrorStatus(403, "PERMISSION_DENIED"),
    NotFound: ErrorStatus(404, "NOT_FOUND"),
    AlreadyExists: ErrorStatus(409, "ALREADY_EXISTS"),
    Conflict: ErrorStatus(409, "ABORTED"),
    Fenced: ErrorStatus(409, "FAILED_PRECONDITION"),
    NotAllowedNow: ErrorStatus(409, "FAILED_PRECONDITION"),
    TaskEnded: ErrorStatus(409, "FAILED_PRECONDITION"),
    Overloaded: ErrorStatus(429, "RESOURCE_EXHAUSTED"),
    Unavailable: ErrorStatus(503, "UNAVAILABLE"),
    NotLeading: ErrorStatus(503, "UNAVAILABLE"),
    DeadlineExceeded: ErrorStatus(504, "DEADLINE_EXCEEDED"),
    Corrupt: ErrorStatus(500, "DATA_LOSS"),
    UnknownKind: ErrorStatus(500, "UNIMPLEMENTED"),
}
