"""What an S3 server says, as one of Strata's errors that names the variable or permission.

The library hands on the server's answer as text; what counts is the status, the server's own code
(`<Code>`), and whether there was an answer at all.
"""

import re

import obstore

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

STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w+)</Code>")
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
        "the secret does not fit the key: check AWS_SECRET_ACCESS_KEY",
    ),
    "ExpiredToken": (Unauthenticated, "the credentials have expired: renew AWS_SESSION_TOKEN"),
    "InvalidToken": (Unauthenticated, "the token is not valid: check AWS_SESSION_TOKEN"),
    "RequestTimeTooSkewed": (Unauthenticated, "this machine's clock is wrong: set it"),
    "NoSuchBucket": (
        NotFound,
        "there is no bucket {bucket}: create it, or correct CHECKPOINT_BUCKET or the s3:// path",
    ),
    "InvalidBucketName": (InvalidArgument, "{bucket} cannot be a bucket's name"),
    "PermanentRedirect": (InvalidArgument, REGION),
    "AuthorizationHeaderMalformed": (InvalidArgument, REGION),
    "IllegalLocationConstraintException": (InvalidArgument, REGION),
    "PreconditionFailed": (Conflict, "somebody replaced it meanwhile; read again"),
    "EntityTooLarge": (InvalidArgument, "an object may have 5 TiB"),
    "QuotaExceeded": (Unavailable, "the server's quota is used up: free space"),
}

STATUSES: dict[int, tuple[type[StrataError], str]] = {
    401: (Unauthenticated, "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    403: (
        PermissionDenied,
        "the key needs the permission {permission} on bucket {bucket}; if it has, check "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    404: (NotFound, "it was never written, or deleted"),
    301: (InvalidArgument, REGION),
    412: (Conflict, "somebody replaced it meanwhile; read again"),
    429: (Unavailable, "the server asks to slow down; it was retried in vain"),
    507: (Unavailable, "the server's disk is full"),
}


def s3_fault(
    error: Exception, doing: str, bucket: str, permission: str, *, signed: bool = True
) -> StrataError:
    """The error to raise from one of the library's; `doing` says what failed and where.

    `signed` says whether the request carried credentials.
    """
    if isinstance(error, obstore.exceptions.AlreadyExistsError):
        return AlreadyExists(f"{doing}: it exists")
    text = str(error)
    if any(each in text for each in METADATA):
        return Unauthenticated(
            f"{doing}: the metadata address gave no credentials of a role: {first_line(text)}",
            hint="give the machine a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    code = next(iter(CODE.findall(text)), "")
    status = int(next(iter(STATUS.findall(text)), "0"))
    kind, hint = CODES.get(code) or STATUSES.get(status) or without_answer(text, status)
    reason = next(iter(MESSAGE.findall(text)), "") or first_line(text)
    said = " ".join(filter(None, [str(status or ""), code]))
    message = f"{doing}: {said + ': ' if said else ''}{reason}"
    if status in (401, 403) and not signed:
        kind, hint = Unauthenticated, UNSIGNED
    return kind(message, hint=hint.format(bucket=bucket, permission=permission))


def without_answer(text: str, status: int) -> tuple[type[StrataError], str]:
    """Where neither code nor status is telling: nobody answered, or nothing useful."""
    if status >= 500:
        return Unavailable, "the server has trouble of its own; it was retried in vain"
    if "credential" in text.lower():
        return Unauthenticated, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if "kind: Connect" in text or "error sending request" in text or "kind: Timeout" in text:
        return Unavailable, "nobody answers there: check AWS_ENDPOINT_URL, AWS_REGION and network"
    if isinstance(text, str) and ("URL scheme is not allowed" in text or "BadScheme" in text):
        return InvalidArgument, "AWS_ENDPOINT_URL must begin with http:// or https://"
    return Unavailable, "check AWS_ENDPOINT_URL and the server's log"


def first_line(text: str) -> str:
    return text.partition("\n")[0].strip()[:300]
