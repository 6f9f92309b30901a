"""Sends a folder to a coordinator: only the pieces that it does not have."""

import hashlib
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from strata.errors import Conflict, Overloaded
from strata.workdir.folder_scan import Scanned

BODY_BYTES = 700 * 1024
RETRY_S = 60.0
"""Base64 bytes of one request; the coordinator takes 1 MiB."""

Post = Callable[[str, object], bytes]
"""Sends a body to a path of the REST API and returns the response."""


class Announced(Struct, frozen=True):
    """The response to a list of files."""

    digest: str
    missing: list[str]


class Sent(NamedTuple):
    """The digest of a folder, and the bytes of its files that had to be sent."""

    digest: str
    size_bytes: int


def send(scanned: Scanned, post: Post) -> Sent:
    """Send a folder."""
    files = msgspec.to_builtins(scanned.workdir.files)
    answer = post("/api/workdirs", {"files": files})
    announced = msgspec.json.decode(answer, type=Announced)
    for batch in _batches(scanned, announced.missing):
        _post_with_retry(post, f"/api/workdirs/{announced.digest}/pieces", {"pieces": batch})
    sizes = scanned.workdir.pieces
    return Sent(announced.digest, sum(sizes[piece] for piece in announced.missing))


def _batches(scanned: Scanned, missing: list[str]) -> Iterator[list[str]]:
    """The missing pieces as Base64, as many together as a request may have."""
    batch, size = list[str](), 0
    for digest in missing:
        source = scanned.sources[digest]
        content = source.read()
        if hashlib.sha256(content).hexdigest() != digest:
            raise Conflict(f"{source.file} changed while it was sent", hint="submit again")
        text = b64encode(content).decode()
        if batch and size + len(text) > BODY_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _post_with_retry(post: Post, path: str, body: object) -> None:
    """Send a request, again if the coordinator takes no more requests of this client at present."""
    give_up_s = time.monotonic() + RETRY_S
    while True:
        try:
            post(path, body)
            return
        except Overloaded as busy:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(busy.retry_after_s)
