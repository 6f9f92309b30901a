"""How much of a multipart upload the server has, while the library uploads it.

The library takes bytes and says nothing until all of them are stored: with 16 parts of 16 MiB on
their way at once, what was handed over says little about what has arrived. So the server is asked,
every few seconds, for the parts that it has acknowledged. Uploads that are shorter than the first
interval cost no request. An object of one part is stored by one request: nothing of it is there
before all of it is.

Where these calls cannot be signed (see `s3_calls`) or are refused, nothing is told before the end.
"""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from xml.etree import ElementTree

from strata.config import Settings
from strata.errors import StrataError, Unavailable
from strata.storage.s3_calls import S3Calls
from strata.storage.s3_uploads import Upload, parsed, text_of

log = logging.getLogger(__name__)

PERMISSION = "s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts"
MIN_INTERVAL_S = 0.25
PAGE_LIMIT = 20  # an upload has 10,000 parts at most, and a page 1,000


class UploadProgress:
    """Tells how many bytes of one object the server has, from a thread of its own."""

    def __init__(
        self,
        bucket: str,
        key: str,
        settings: Settings,
        tell: Callable[[int], None],
        interval_s: float,
    ) -> None:
        self._calls = S3Calls(bucket, settings, f"see the upload of {key}", PERMISSION)
        self._key, self._tell = key, tell
        self._interval_s = max(interval_s, MIN_INTERVAL_S)
        self._upload: Upload | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strata-upload", daemon=True)

    def __enter__(self) -> Self:
        self._tell(0)
        if self._calls.can_sign:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                stored_bytes = self._stored_bytes()
            except (StrataError, ElementTree.ParseError) as error:
                log.debug("the server does not say how much of %s it has: %s", self._key, error)
                if not isinstance(error, Unavailable):
                    return
                stored_bytes = 0
            if stored_bytes and not self._ended.is_set():
                self._tell(stored_bytes)

    def _stored_bytes(self) -> int:
        """What the parts that are stored have together; 0 while there is no upload."""
        upload = self._upload = self._upload or self._newest_upload()
        if upload is None:
            return 0
        found, marker = 0, "0"
        for _ in range(PAGE_LIMIT):
            query = {"uploadId": upload.upload_id, "part-number-marker": marker}
            page = self._calls.call("GET", self._key, query).body
            root = ElementTree.fromstring(page) if page else ElementTree.Element("none")
            found += sum(int(text_of(part, "Size") or 0) for part in root.iterfind("{*}Part"))
            marker = text_of(root, "NextPartNumberMarker")
            if text_of(root, "IsTruncated") != "true":
                break
        return found

    def _newest_upload(self) -> Upload | None:
        """The upload of the object; where an earlier try left one, the newest."""
        page = self._calls.call("GET", "", {"uploads": "", "prefix": self._key})
        uploads = [each for each in parsed(page.body)[0] if each.key == self._key]
        return max(uploads, key=lambda each: each.begun_s, default=None)
