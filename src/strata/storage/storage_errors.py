"""Turns errors of disks and S3 servers into Strata's errors, with a hint.

obstore reports an S3 server's response as text; the status and the server's own code are read from
it.
"""

import errno
import os
import re

from strata.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StrataError,
    Unauthenticated,
    Unavailable,
)

HINTS: dict[int, tuple[type[StrataError], str]] = {
    errno.ENOSPC: (Unavailable, "the disk is full: free space, or keep fewer checkpoints"),
    errno.EDQUOT: (Unavailable, "the disk quota is used up: free space, or keep fewer checkpoints"),
    errno.EFBIG: (Unavailable, "the file size limit is exceeded: see ulimit -f"),
    errno.EROFS: (PermissionDenied, "the disk is mounted read-only"),
    errno.EACCES: (PermissionDenied, "this user needs write permission there: see chown and chmod"),
    errno.EPERM: (PermissionDenied, "the operation is not permitted there: see chown and chattr"),
    errno.ENOENT: (NotFound, "the file was deleted meanwhile"),
    errno.ENOTDIR: (InvalidArgument, "a file is where a folder should be"),
    errno.EISDIR: (InvalidArgument, "a folder is where a file should be"),
    errno.ENOTEMPTY: (Unavailable, "another process is writing there"),
    errno.ENAMETOOLONG: (InvalidArgument, "choose a shorter name"),
    errno.ELOOP: (InvalidArgument, "its symbolic links form a loop"),
    errno.EMFILE: (Unavailable, "too many open files: raise ulimit -n"),
    errno.EIO: (Unavailable, "the disk reports an error: check the kernel's log"),
}


def disk_error(error: OSError, doing: str) -> StrataError:
    """The error to raise from an `OSError`; `doing` says what failed and where."""
    number = error.errno or 0
    kind, hint = HINTS.get(number, (Unavailable, "check the disk and the kernel's log"))
    return kind(f"{doing}: {error.strerror or os.strerror(number)}", hint=hint)


STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""In an error's body, or in the part of a bulk deletion's answer for one object."""

MESSAGE = re.compile(r"<Message>([^<]{0,300})")

METADATA = ("169.254.169.254", "/latest/api/token", "/latest/meta-data/")
UNSIGNED = (
    "the request carried no credentials (AWS_SKIP_SIGNATURE is set), and the bucket is not public: "
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)
REGION = "set AWS_REGION to where the bucket is"

CODES: dict[str, tuple[type[StrataError], str]] = {
    "InvalidAccessKeyId": (
        Unauthenticated,
        "the server does not know this key: check AWS_ACCESS_KEY_ID, and AWS_SESSION_TOKEN if the "
        "key is a temporary one",
    ),
    "SignatureDoesNotMatch": (
        Unauthenticated,
        "the secret does not match the key: check AWS_SECRET_ACCESS_KEY",
    ),
    "ExpiredToken": (Unauthenticated, "the credentials have expired: renew AWS_SESSION_TOKEN"),
    "InvalidToken": (Unauthenticated, "the token is not valid: check AWS_SESSION_TOKEN"),
    "RequestTimeTooSkewed": (Unauthenticated, "this machine's clock is wrong: set it"),
    "NoSuchBucket": (
        NotFound,
        "there is no bucket {bucket}: create it, or correct CHECKPOINT_BUCKET or the s3:// path",
    ),
    "InvalidBucketName": (InvalidArgument, "{bucket} is not a valid bucket name"),
    "PermanentRedirect": (InvalidArgument, REGION),
    "AuthorizationHeaderMalformed": (InvalidArgument, REGION),
    "IllegalLocationConstraintException": (InvalidArgument, REGION),
    "PreconditionFailed": (Conflict, "another writer replaced it meanwhile; read again"),
    "EntityTooLarge": (InvalidArgument, "an object may have at most 5 TiB"),
    "QuotaExceeded": (Unavailable, "the server's quota is used up: free space"),
}

STATUSES: dict[int, tuple[type[StrataError], str]] = {
    401: (Unauthenticated, "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    403: (
        PermissionDenied,
        "the key needs the permission {permission} on bucket {bucket}; if it has, check "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    404: (NotFound, "it was never written, or was deleted"),
    301: (InvalidArgument, REGION),
    412: (Conflict, "another writer replaced it meanwhile; read again"),
    429: (Unavailable, "the server asks to slow down; all retries failed"),
    507: (Unavailable, "the server's disk is full"),
}


def s3_error(
    error: Exception, doing: str, bucket: str, permission: str, *, signed: bool = True
) -> StrataError:
    """The error to raise from an error of obstore; `doing` says what failed and where.

    `signed` says whether the request carried credentials.
    """
    from obstore.exceptions import AlreadyExistsError  # not where checkpoints lie on a disk

    if isinstance(error, AlreadyExistsError):
        return AlreadyExists(f"{doing}: it already exists")
    text = str(error)
    if any(each in text for each in METADATA):
        return Unauthenticated(
            f"{doing}: the metadata address returned no role credentials: {first_line(text)}",
            hint="give the machine a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    code = "".join(next(iter(CODE.findall(text)), ()))
    status = int(next(iter(STATUS.findall(text)), "403" if code == "AccessDenied" else "0"))
    kind, hint = CODES.get(code) or STATUSES.get(status) or hint_without_response(text, status)
    reason = next(iter(MESSAGE.findall(text)), "") or first_line(text)
    said = " ".join(filter(None, [str(status or ""), code]))
    message = f"{doing}: {said + ': ' if said else ''}{reason}"
    if status in (401, 403) and not signed:
        kind, hint = Unauthenticated, UNSIGNED
    return kind(message, hint=hint.format(bucket=bucket, permission=permission))


def hint_without_response(text: str, status: int) -> tuple[type[StrataError], str]:
    """The hint if neither code nor status explains the error: no response, or an unknown one."""
    if status >= 500:
        return Unavailable, "the server has an internal error; all retries failed"
    if "credential" in text.lower():
        return Unauthenticated, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if "kind: Connect" in text or "error sending request" in text or "kind: Timeout" in text:
        return Unavailable, "no response: check AWS_ENDPOINT_URL, AWS_REGION and the network"
    if isinstance(text, str) and ("URL scheme is not allowed" in text or "BadScheme" in text):
        return InvalidArgument, "AWS_ENDPOINT_URL must begin with http:// or https://"
    return Unavailable, "check AWS_ENDPOINT_URL and the server's log"


def first_line(text: str) -> str:
    return text.partition("\n")[0].strip()[:300]
