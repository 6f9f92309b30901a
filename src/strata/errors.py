"""Every error Strata raises on purpose, and the one table to HTTP and gRPC status.

    StrataError
    ├── InvalidArgument      the request makes no sense, whatever the state
    │   └── SettingError     a setting is unknown or has a wrong value
    ├── LimitExceeded        a payload is larger than its limit
    ├── Unauthenticated      no token, or not a valid one
    ├── PermissionDenied     known, but not allowed
    ├── NotFound             the thing named does not exist
    ├── AlreadyExists        the thing named exists and is different
    ├── Conflict             another writer won; read again and retry
    ├── Fenced               words of an old incarnation
    ├── NotAllowedNow        the life cycle forbids it in this state
    │   └── TaskEnded        the task is completed or stopped: it needs no more workers
    ├── Overloaded           a queue is full; try again after `retry_after_s`
    ├── Unavailable          the other side cannot be reached or is starting
    ├── DeadlineExceeded     it took longer than allowed
    ├── Corrupt              stored bytes are not what was written
    └── UnknownKind          a log written by a newer version

From the top: the caller's mistake, then the state of the cluster, then what the network and the
disk do. A bug is an `assert`, never one of these.
"""

from typing import ClassVar, NamedTuple


class StrataError(Exception):
    """What went wrong in one sentence, and a hint that says what to do next."""

    code: ClassVar[str] = "error"  # stable: callers compare it, so it never changes

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


class DeadlineExceeded(StrataError):
    code = "deadline_exceeded"


class Corrupt(StrataError):
    code = "corrupt"


class UnknownKind(StrataError):
    code = "unknown_kind"


class Status(NamedTuple):
    """How an error travels: the HTTP status and the name of the gRPC status code."""

    http: int
    grpc: str


STATUS: dict[type[StrataError], Status] = {
    StrataError: Status(500, "INTERNAL"),
    InvalidArgument: Status(400, "INVALID_ARGUMENT"),
    SettingError: Status(400, "INVALID_ARGUMENT"),
    LimitExceeded: Status(413, "RESOURCE_EXHAUSTED"),
    Unauthenticated: Status(401, "UNAUTHENTICATED"),
    PermissionDenied: Status(403, "PERMISSION_DENIED"),
    NotFound: Status(404, "NOT_FOUND"),
    AlreadyExists: Status(409, "ALREADY_EXISTS"),
    Conflict: Status(409, "ABORTED"),
    Fenced: Status(409, "FAILED_PRECONDITION"),
    NotAllowedNow: Status(409, "FAILED_PRECONDITION"),
    TaskEnded: Status(409, "FAILED_PRECONDITION"),
    Overloaded: Status(429, "RESOURCE_EXHAUSTED"),
    Unavailable: Status(503, "UNAVAILABLE"),
    DeadlineExceeded: Status(504, "DEADLINE_EXCEEDED"),
    Corrupt: Status(500, "DATA_LOSS"),
    UnknownKind: Status(500, "UNIMPLEMENTED"),
}
