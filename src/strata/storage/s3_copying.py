"""Copies an object within its bucket by parts: none of its bytes travel.

One call copies up to 5 GiB, which the library has; what is larger is put together from ranges.
"""

from contextlib import suppress
from xml.etree import ElementTree

from strata.config import Settings
from strata.errors import StrataError, Unavailable
from strata.storage.parallel import for_each
from strata.storage.s3_calls import S3Calls, quoted_path
from strata.storage.s3_uploads import text_of

WHOLE_BYTES = 5 * 1024**3
PART_BYTES = 512 * 1024 * 1024
PERMISSION = "s3:GetObject, s3:PutObject and s3:AbortMultipartUpload"
TIMEOUT_S = 300.0


def copy_by_parts(
    bucket: str, source: str, target: str, size_bytes: int, settings: Settings
) -> bool:
    """Copies the object of that key; False where the calls cannot be signed."""
    calls = S3Calls(bucket, settings, f"copy {source}", PERMISSION)
    if not calls.can_sign:
        return False
    begun = ElementTree.fromstring(calls.call("POST", target, {"uploads": ""}).body)
    upload = {"uploadId": text_of(begun, "UploadId")}
    tags: dict[int, str] = {}

    def copy_part(number: int) -> None:
        start = (number - 1) * PART_BYTES
        stop = min(start + PART_BYTES, size_bytes)
        headers = {
            "x-amz-copy-source": quoted_path(f"/{bucket}/{source}"),
            "x-amz-copy-source-range": f"bytes={start}-{stop - 1}",
        }
        query = {**upload, "partNumber": str(number)}
        answer = calls.call("PUT", target, query, headers=headers, timeout_s=TIMEOUT_S)
        tags[number] = tag_of(answer.body, source)

    try:
        for_each(copy_part, range(1, -(-size_bytes // PART_BYTES) + 1))
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{tags[number]}</ETag></Part>"
            for number in sorted(tags)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        tag_of(calls.call("POST", target, upload, body=body, timeout_s=TIMEOUT_S).body, source)
    except StrataError:
        with suppress(StrataError):
            calls.call("DELETE", target, upload)
        raise
    return True


def tag_of(body: bytes, source: str) -> str:
    """The tag of what was made. S3 may begin to answer "200 OK" and tell of a failure after it."""
    tag = text_of(ElementTree.fromstring(body), "ETag") if body else ""
    if not tag:
        raise Unavailable(f"the copy of {source} broke off: {body.decode('utf-8', 'replace')}")
    return tag
