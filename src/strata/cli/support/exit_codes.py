"""Exit codes of all verbs, and the code of each error class.

`docs/COMMAND_LINE.md` has the same table; a test compares the two. The codes of tasks repeat the
constants of `core/tasks`, because importing the rules would double the time of `--help`.
"""

from strata.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Fenced,
    InvalidArgument,
    LimitExceeded,
    NotAllowedNow,
    NotFound,
    Overloaded,
    PermissionDenied,
    StrataError,
    Unauthenticated,
    Unavailable,
    UnknownKind,
)

DONE = 0
FAILED = 1
USAGE = 2
UNPROVEN = 3
NOT_FOUND = 4
UNREACHABLE = 5
DENIED = 6
REFUSED = 7
DAMAGED = 8
RESTART_LOOP = 93
UNSAVED = 94
INTERRUPTED = 130

MEANINGS = {
    DONE: "done; for `run` the task completed, for `audit` every step is proven",
    FAILED: "failed; for `run` the task failed, for `audit` a sample is missing or applied twice, "
    "for `doctor` something must be fixed",
    USAGE: "wrong arguments or settings; nothing was done",
    UNPROVEN: "`audit`: a worker's record is missing or damaged, so not every step is proven",
    NOT_FOUND: "the given task, worker, run, folder or script does not exist",
    UNREACHABLE: "the coordinator, storage or port cannot be reached or used, or timed out",
    DENIED: "the token is missing, wrong, or not allowed to do this",
    REFUSED: "refused: it exists already, another writer won, or the state does not allow it",
    DAMAGED: "stored data is damaged, or written by a newer release",
    RESTART_LOOP: "`run`: restart loop, workers failed repeatedly without progress",
    UNSAVED: "`run`: the task completed, but its final checkpoint failed",
    INTERRUPTED: "`run`: the task was stopped; other verbs: interrupted by Ctrl-C",
}

_BY_ERROR: dict[type[StrataError], int] = {
    InvalidArgument: USAGE,
    LimitExceeded: USAGE,
    NotFound: NOT_FOUND,
    Unavailable: UNREACHABLE,
    DeadlineExceeded: UNREACHABLE,
    Overloaded: UNREACHABLE,
    Unauthenticated: DENIED,
    PermissionDenied: DENIED,
    AlreadyExists: REFUSED,
    Conflict: REFUSED,
    Fenced: REFUSED,
    NotAllowedNow: REFUSED,
    Corrupt: DAMAGED,
    UnknownKind: DAMAGED,
}


def code_of(error: StrataError) -> int:
    """The exit code for an error."""
    kinds = (kind for kind in type(error).__mro__ if kind in _BY_ERROR)
    return next((_BY_ERROR[kind] for kind in kinds), FAILED)


def help_text() -> str:
    """The table as help text."""
    codes = "\n".join(f"{code:>4}  {meaning}" for code, meaning in MEANINGS.items())
    return f"\b\nExit codes:\n{codes}"
