"""Ends multipart uploads that dead writers left behind.

Their parts are invisible and cost money until somebody aborts the upload. The library can neither
list nor abort them. Only uploads below the prefix and older than the given age go: younger ones may
belong to somebody who is still writing. Where these calls cannot be signed, a lifecycle rule on the
bucket does the same.
"""

from datetime import datetime
from typing import NamedTuple
from xml.etree import ElementTree

from strata.config import Settings
from strata.storage.s3_calls import S3Calls

PAGE_LIMIT = 100
PERMISSION = "s3:ListBucketMultipartUploads and s3:AbortMultipartUpload"


class Upload(NamedTuple):
    key: str
    upload_id: str
    begun_s: float


def abort_leftover_uploads(
    bucket: str, prefix: str, settings: Settings, older_than_s: float
) -> int:
    """Aborts old uploads below the prefix; returns how many. The server's clock decides."""
    calls = S3Calls(bucket, settings, "end left-over uploads", PERMISSION)
    if not calls.can_sign:
        return 0
    aborted = 0
    marker: dict[str, str] = {}
    for _ in range(PAGE_LIMIT):
        page = calls.call("GET", "", {"uploads": "", "prefix": prefix, **marker})
        uploads, marker = parsed(page.body)
        for upload in uploads:
            inside = not prefix or upload.key.startswith(f"{prefix}/")
            if inside and page.now_s - upload.begun_s >= older_than_s:
                calls.call("DELETE", upload.key, {"uploadId": upload.upload_id})
                aborted += 1
        if not marker:
            break
    return aborted


def parsed(page: bytes) -> tuple[list[Upload], dict[str, str]]:
    """The uploads of one page, and the parameters that ask for the next."""
    root = ElementTree.fromstring(page)
    uploads = [
        Upload(
            text_of(node, "Key").lstrip("/"),
            text_of(node, "UploadId"),
            datetime.fromisoformat(text_of(node, "Initiated")).timestamp(),
        )
        for node in root.iterfind("{*}Upload")
    ]
    if text_of(root, "IsTruncated") != "true":
        return uploads, {}
    return uploads, {
        "key-marker": text_of(root, "NextKeyMarker"),
        "upload-id-marker": text_of(root, "NextUploadIdMarker"),
    }


def text_of(node: ElementTree.Element, name: str) -> str:
    return node.findtext(f"{{*}}{name}") or ""
