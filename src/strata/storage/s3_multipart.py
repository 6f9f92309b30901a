"""Multipart requests that obstore lacks: copy by parts, abort leftovers, progress of an upload.

Copy. obstore's copy handles up to 5 GiB, the limit of one request. A larger object is copied within
its bucket by parts, on the server.

Abort. Parts of an upload whose writer died are invisible and cost money until the upload is
aborted. obstore can neither list nor abort uploads. Only uploads below the prefix and older than
the given age are aborted: the writer of a younger one may be alive. If these requests cannot be
signed, a lifecycle rule on the bucket does the same.

Progress. obstore takes bytes and reports nothing until all of them are stored: with 16 parts of 16
MiB in flight, the bytes passed to it say little about what has arrived. So the server is asked
every few seconds for the parts that it has. Uploads that are shorter than the first interval cost
no request. An object of one part is stored by one request, so it has no progress. If these requests
cannot be signed (see `s3_requests`) or are refused, progress is reported only at the end.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, Self
from xml.etree import ElementTree

from strata.config import Settings
from strata.errors import StrataError, Unavailable
from strata.storage.io_threads import for_each
from strata.storage.s3_requests import S3Requests, quoted_path

PAGE_LIMIT = 100
ABORT_PERMISSION = "s3:ListBucketMultipartUploads and s3:AbortMultipartUpload"


class MultipartUpload(NamedTuple):
    key: str
    upload_id: str
    begun_s: float


def abort_leftover_uploads(
    bucket: str, prefix: str, settings: Settings, older_than_s: float
) -> int:
    """Abort old uploads below the prefix, by the server's clock; return how many."""
    calls = S3Requests(bucket, settings, "abort left-over uploads", ABORT_PERMISSION)
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


def parsed(page: bytes) -> tuple[list[MultipartUpload], dict[str, str]]:
    """The uploads of one page, and the query parameters for the next page."""
    root = ElementTree.fromstring(page)
    uploads = [
        MultipartUpload(
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


WHOLE_BYTES = 5 * 1024**3
PART_BYTES = 512 * 1024 * 1024
COPY_PERMISSION = "s3:GetObject, s3:PutObject and s3:AbortMultipartUpload"
TIMEOUT_S = 300.0


def copy_by_parts(
    bucket: str, source: str, target: str, size_bytes: int, settings: Settings
) -> bool:
    """Copy the object of that key; False if the requests cannot be signed."""
    calls = S3Requests(bucket, settings, f"copy {source}", COPY_PERMISSION)
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
    """The tag of a copied part or object. S3 may send "200 OK" first and an error in the body."""
    tag = text_of(ElementTree.fromstring(body), "ETag") if body else ""
    if not tag:
        raise Unavailable(f"the copy of {source} failed: {body.decode('utf-8', 'replace')}")
    return tag


log = logging.getLogger(__name__)

LIST_PARTS_PERMISSION = "s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts"
MIN_INTERVAL_S = 0.25
PARTS_PAGE_LIMIT = 20  # an upload has at most 10,000 parts, and a page 1,000


class UploadProgress:
    """Reports how many bytes of one object the server has, from a separate thread."""

    def __init__(
        self,
        bucket: str,
        key: str,
        settings: Settings,
        tell: Callable[[int], None],
        interval_s: float,
    ) -> None:
        self._calls = S3Requests(
            bucket, settings, f"see the upload of {key}", LIST_PARTS_PERMISSION
        )
        self._key, self._tell = key, tell
        self._interval_s = max(interval_s, MIN_INTERVAL_S)
        self._upload: MultipartUpload | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strata-upload", daemon=True)

    def __enter__(self) -> Self:
        self._tell(0)
        if self._calls.can_sign:
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                stored_bytes = self._stored_bytes()
            except (StrataError, ElementTree.ParseError) as error:
                log.debug("cannot get the upload progress of %s: %s", self._key, error)
                if not isinstance(error, Unavailable):
                    return
                stored_bytes = 0
            if stored_bytes and not self._ended.is_set():
                self._tell(stored_bytes)

    def _stored_bytes(self) -> int:
        """The total size of the stored parts; 0 while there is no upload."""
        upload = self._upload = self._upload or self._newest_upload()
        if upload is None:
            return 0
        found, marker = 0, "0"
        for _ in range(PARTS_PAGE_LIMIT):
            query = {"uploadId": upload.upload_id, "part-number-marker": marker}
            page = self._calls.call("GET", self._key, query).body
            root = ElementTree.fromstring(page) if page else ElementTree.Element("none")
            found += sum(int(text_of(part, "Size") or 0) for part in root.iterfind("{*}Part"))
            marker = text_of(root, "NextPartNumberMarker")
            if text_of(root, "IsTruncated") != "true":
                break
        return found

    def _newest_upload(self) -> MultipartUpload | None:
        """The upload of the object; the newest if an earlier attempt left one."""
        page = self._calls.call("GET", "", {"uploads": "", "prefix": self._key})
        uploads = [each for each in parsed(page.body)[0] if each.key == self._key]
        return max(uploads, key=lambda each: each.begun_s, default=None)
