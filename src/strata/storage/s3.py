"""A bucket as object storage, through obstore: any S3 server, parallel parts, retries.

Uploads use 16 MiB parts, 16 at a time; sequential 5 MiB parts reached a thirtieth of that speed on
the same server. obstore retries each request with exponential backoff and jitter, and aborts the
multipart upload if one fails. The payload is not signed: hashing it again with SHA-256 costs 1.1
CPU-seconds per GiB while the upload itself costs 0.25, TLS protects the connection, and a
checkpoint has its own checksums.

Credentials come from the settings or, if those are empty, from the other AWS_ variables (a web
identity, a container's role). The cloud's metadata address, 169.254.169.254, is asked for the
machine's role only if `aws_instance_role` is set: elsewhere that address may not exist or belong to
another service, which would cause a delay or a misleading error. Without credentials nothing is
sent.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Self, TypeVar

import numpy as np
import obstore
from obstore.store import S3Store

from strata.config import Settings, aws_identity
from strata.errors import Corrupt, NotFound, StrataError, Unauthenticated
from strata.storage.backend import Buffer, ObjectInfo, ObjectListing, acknowledge_to, checked_name
from strata.storage.io_threads import download, scatter
from strata.storage.s3_multipart import (
    WHOLE_BYTES,
    UploadProgress,
    abort_leftover_uploads,
    copy_by_parts,
)
from strata.storage.s3_requests import DEFAULT_REGION
from strata.storage.storage_errors import s3_error

log = logging.getLogger(__name__)

PART_BYTES = 16 * 1024 * 1024
MAX_PARTS = 9_000  # S3 takes 10,000
CHUNK_BYTES = 1024 * 1024
CONCURRENCY = 16
LISTING_RETRIES = 4
NO_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; on a cloud machine with a role, set "
    "STRATA_AWS_INSTANCE_ROLE=1; for a public bucket, AWS_SKIP_SIGNATURE=true"
)

Answer = TypeVar("Answer")


class S3Storage:
    """Objects of one bucket, all below `prefix`."""

    recycles = False

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        settings: Settings | None = None,
        *,
        max_retries: int = 10,
        retry_timeout_s: float = 120.0,
        request_timeout_s: float = 300.0,
    ) -> None:
        self.bucket = bucket
        self.prefix = checked_name(prefix) if prefix else ""
        self.url = f"s3://{bucket}" + (f"/{prefix}" if prefix else "")
        self._settings = settings or Settings()
        self._lacking = lacking_credentials(self._settings)
        self._signed = aws_identity() != "AWS_SKIP_SIGNATURE"
        self._store = S3Store(
            bucket,
            prefix=self.prefix or None,
            config=credentials(self._settings, self._lacking),  # type: ignore[arg-type]
            client_options={
                "allow_http": self._settings.aws_endpoint_url.startswith("http://"),
                "connect_timeout": timedelta(seconds=min(10.0, request_timeout_s)),
                "timeout": timedelta(seconds=request_timeout_s),
            },
            retry_config={
                "max_retries": max_retries,
                "retry_timeout": timedelta(seconds=retry_timeout_s),
            },
        )

    def put(self, name: str, data: Buffer, *, if_absent: bool = False) -> None:
        view = memoryview(data).cast("B")
        with self._doing("write", name, "s3:PutObject") as call:
            call.size_bytes = view.nbytes
            if if_absent:
                self._store.put(checked_name(name), view, mode="create")
            else:
                self._store.put(
                    checked_name(name), view, chunk_size=PART_BYTES, max_concurrency=CONCURRENCY
                )

    def put_stream(
        self,
        name: str,
        chunks: Iterable[Buffer],
        *,
        size_bytes: int | None = None,
        recycle: str | None = None,
    ) -> int:
        sent, tell = 0, acknowledge_to(chunks)
        part_bytes = max(PART_BYTES, -(-(size_bytes or 0) // MAX_PARTS))
        following = nullcontext() if tell is None else self._following(name, tell)

        def counted() -> Iterator[memoryview]:
            nonlocal sent
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                sent += view.nbytes
                if view.nbytes:
                    yield view

        permission = "s3:PutObject and s3:AbortMultipartUpload"
        with following, self._doing("write", name, permission) as call:
            self._store.put(
                checked_name(name),
                counted(),
                chunk_size=part_bytes,
                max_concurrency=CONCURRENCY,
            )
            call.size_bytes = sent
        if recycle is not None:
            self.delete(recycle)
        return sent

    def _following(self, name: str, tell: Callable[[int], None]) -> UploadProgress:
        interval_s = self._settings.progress_interval_s
        return UploadProgress(self.bucket, self._key(name), self._settings, tell, interval_s)

    def link(self, name: str, other: str) -> bool:
        """Copy an object within the bucket, on the server."""
        try:
            size_bytes = self.head(name).size_bytes
            if size_bytes > WHOLE_BYTES:
                keys = (self._key(name), self._key(other))
                return copy_by_parts(self.bucket, *keys, size_bytes, self._settings)
            with self._doing("copy", name, "s3:GetObject and s3:PutObject"):
                self._store.copy(checked_name(name), checked_name(other))
        except StrataError:
            return False
        return True

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{checked_name(name)}" if self.prefix else checked_name(name)

    def get(self, name: str) -> bytes:
        with self._doing("read", name, "s3:GetObject") as call:
            found = bytes(self._store.get(checked_name(name)).bytes())
            call.size_bytes = len(found)
        return found

    def open(self, name: str) -> "S3Reader":
        with self._doing("read", name, "s3:GetObject"):
            meta = self._store.head(checked_name(name))
        return S3Reader(self, name, meta["size"], meta["e_tag"])

    def download(self, name: str, buffer: memoryview, *, offset: int = 0) -> None:
        with self.open(name) as reader:
            download(reader, buffer, offset)

    def head(self, name: str) -> ObjectInfo:
        with self._doing("read", name, "s3:GetObject"):
            meta = self._store.head(checked_name(name))
        return info(name, meta)

    def exists(self, name: str) -> bool:
        try:
            self.head(name)
        except NotFound:
            return False
        return True

    def list(self, folder: str = "") -> ObjectListing:
        with self._doing("list", folder, "s3:ListBucket"):
            found = retried_listing(
                lambda: self._store.list_with_delimiter(checked_name(folder) if folder else None)
            )
        objects = [info(meta["path"], meta) for meta in found["objects"]]
        return ObjectListing(
            sorted(objects, key=lambda each: each.name), sorted(found["common_prefixes"])
        )

    def walk(self, folder: str = "") -> Sequence[ObjectInfo]:
        with self._doing("list", folder, "s3:ListBucket"):
            found = retried_listing(
                lambda: self._store.list(checked_name(folder) if folder else None).collect()
            )
        return sorted((info(meta["path"], meta) for meta in found), key=lambda each: each.name)

    def delete(self, name: str) -> None:
        with self._doing("delete", name, "s3:DeleteObject"):
            self._store.delete(checked_name(name))

    def delete_folder(self, folder: str) -> None:
        names = [found.name for found in self.walk(folder)]
        if names:
            with self._doing("delete", folder, "s3:DeleteObject"):
                self._store.delete(names)

    def abort_uploads(self, older_than_s: float) -> int:
        return abort_leftover_uploads(self.bucket, self.prefix, self._settings, older_than_s)

    def in_use(self, name: str) -> bool:
        """Always False: a bucket has no locks; a reader whose object is deleted gets `NotFound`."""
        return False

    def close(self) -> None:
        """Connections belong to obstore and end with the store."""

    def read_range(self, name: str, start: int, stop: int, e_tag: str | None) -> "obstore.Bytes":
        options: obstore.GetOptions = {"range": (start, stop)}
        if e_tag is not None:
            options["if_match"] = e_tag
        with self._doing("read", name, "s3:GetObject") as call:
            found = self._store.get(checked_name(name), options=options).bytes()
            call.size_bytes = len(found)
        return found

    def read_stream(
        self, name: str, start: int, stop: int, e_tag: str | None
    ) -> Iterator[memoryview]:
        options: obstore.GetOptions = {"range": (start, stop)}
        if e_tag is not None:
            options["if_match"] = e_tag
        with self._doing("read", name, "s3:GetObject") as call:
            found = self._store.get(checked_name(name), options=options)
            for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
                call.size_bytes += len(chunk)
                yield memoryview(chunk)

    @contextmanager
    def _doing(self, verb: str, name: str, permission: str) -> Iterator["_Call"]:
        where = f"{self.url}/{name}" if name else self.url
        if self._lacking:
            raise Unauthenticated(f"cannot {verb} {where}: {self._lacking}", hint=NO_CREDENTIALS)
        call, begun_s = _Call(), time.monotonic()
        try:
            yield call
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            log.debug("%s %s failed after %.3f s", verb, where, time.monotonic() - begun_s)
            fault = s3_error(
                error, f"cannot {verb} {where}", self.bucket, permission, signed=self._signed
            )
            raise fault from error
        if log.isEnabledFor(logging.DEBUG):
            took_s = time.monotonic() - begun_s
            log.debug("%s %s: %d bytes in %.3f s", verb, where, call.size_bytes, took_s)


class _Call:
    """A call on the storage, and the number of bytes sent or received, for the log."""

    size_bytes = 0


class S3Reader:
    """One version of an object: if it is replaced meanwhile, reads raise."""

    def __init__(self, storage: S3Storage, name: str, size_bytes: int, e_tag: str | None) -> None:
        self.size_bytes = size_bytes
        self._storage = storage
        self._name = name
        self._e_tag = e_tag

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        wanted = sum(buffer.nbytes for buffer in buffers)
        if not wanted:
            return
        self._require_inside(offset, wanted)
        read = self._storage.read_range(self._name, offset, offset + wanted, self._e_tag)
        got = np.frombuffer(memoryview(read), np.uint8)
        self._require_all(got.nbytes, wanted)
        scatter(got, buffers)

    def stream(self, offset: int, size_bytes: int) -> Iterator[memoryview]:
        """Some of the bytes, in chunks as they arrive."""
        if not size_bytes:
            return
        self._require_inside(offset, size_bytes)
        stop, got = offset + size_bytes, 0
        for chunk in self._storage.read_stream(self._name, offset, stop, self._e_tag):
            got += chunk.nbytes
            if got > size_bytes:
                break
            yield chunk
        self._require_all(got, size_bytes)

    def _require_inside(self, offset: int, wanted: int) -> None:
        if offset + wanted > self.size_bytes:
            raise Corrupt(
                f"{self._where} ends at byte {self.size_bytes}, before the requested end",
                hint="the object was truncated; restore it or use another checkpoint",
            )

    def _require_all(self, got: int, wanted: int) -> None:
        if got != wanted:
            raise Corrupt(f"{self._where}: received {got} bytes, but {wanted} were requested")

    @property
    def _where(self) -> str:
        return f"{self._storage.url}/{self._name}"

    def close(self) -> None:
        """Close nothing: obstore owns its connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def credentials(settings: Settings, lacking: str = "") -> dict[str, str | bool]:
    """The settings under obstore's names; it reads the other AWS_ variables itself.

    If credentials are `lacking`, none are passed, because obstore refuses half of them.
    """
    wanted: dict[str, str | bool] = {
        "region": settings.aws_region or (DEFAULT_REGION if settings.aws_endpoint_url else ""),
        "access_key_id": "unused" if lacking else settings.aws_access_key_id,
        "secret_access_key": "unused" if lacking else settings.aws_secret_access_key,
        "session_token": settings.aws_session_token,
        "endpoint": settings.aws_endpoint_url,
        "unsigned_payload": True,
    }
    return {name: value for name, value in wanted.items() if value}


def lacking_credentials(settings: Settings) -> str:
    """The reason why no request can be sent, or "" if there are credentials."""
    if settings.aws_access_key_id and not settings.aws_secret_access_key:
        return "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not"
    if settings.aws_secret_access_key and not settings.aws_access_key_id:
        return "AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not"
    if settings.aws_access_key_id or settings.aws_instance_role or aws_identity():
        return ""
    return "no credentials"


def retried_listing(ask: Callable[[], Answer]) -> Answer:
    """Repeat a listing whose response was cut off, which obstore does not retry."""
    for attempt in range(LISTING_RETRIES):
        try:
            return ask()
        except obstore.exceptions.BaseError as error:
            if "kind: Interrupted" not in str(error):
                raise
            log.debug("a listing was cut off, retrying (attempt %d)", attempt + 2)
            time.sleep(random.uniform(0.0, 0.1 * 2**attempt))
    return ask()


def info(path: str, meta: "obstore.ObjectMeta") -> ObjectInfo:
    modified_s = meta["last_modified"].timestamp()
    return ObjectInfo(
        name=path, size_bytes=meta["size"], modified_s=modified_s, tag=meta["e_tag"] or ""
    )
