"""What a disk says, as one of Strata's errors with a hint that says what to do."""

import errno
import os

from strata.errors import InvalidArgument, NotFound, PermissionDenied, StrataError, Unavailable

HINTS: dict[int, tuple[type[StrataError], str]] = {
    errno.ENOSPC: (Unavailable, "the disk is full: free space, or keep fewer checkpoints"),
    errno.EDQUOT: (Unavailable, "the disk quota is used up: free space, or keep fewer checkpoints"),
    errno.EFBIG: (Unavailable, "a limit on file sizes is in the way: see ulimit -f"),
    errno.EROFS: (PermissionDenied, "the disk is mounted read-only"),
    errno.EACCES: (PermissionDenied, "this user needs write permission there: see chown and chmod"),
    errno.EPERM: (PermissionDenied, "this user may not do that there: see chown and chattr"),
    errno.ENOENT: (NotFound, "it was removed meanwhile"),
    errno.ENOTDIR: (InvalidArgument, "a file is where a folder should be"),
    errno.EISDIR: (InvalidArgument, "a folder is where a file should be"),
    errno.ENOTEMPTY: (Unavailable, "somebody writes there at this moment"),
    errno.ENAMETOOLONG: (InvalidArgument, "choose a shorter name"),
    errno.ELOOP: (InvalidArgument, "its symbolic links lead in a circle"),
    errno.EMFILE: (Unavailable, "too many open files: raise ulimit -n"),
    errno.EIO: (Unavailable, "the disk reports an error: look at the kernel's log"),
}


def disk_fault(error: OSError, doing: str) -> StrataError:
    """The error to raise from an `OSError`; `doing` says what failed and where."""
    number = error.errno or 0
    kind, hint = HINTS.get(number, (Unavailable, "look at the disk and at the kernel's log"))
    return kind(f"{doing}: {error.strerror or os.strerror(number)}", hint=hint)
