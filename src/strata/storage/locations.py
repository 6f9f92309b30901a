"""Opens the storage that a path, `file://` or `s3://bucket/prefix` names."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from strata import extras
from strata.config import Settings, load_process
from strata.errors import InvalidArgument
from strata.storage.backend import StorageBackend
from strata.storage.folder import LocalStorage


def open_storage(
    where: str | os.PathLike[str], settings: Settings | None = None, *, retries: int | None = None
) -> StorageBackend:
    """The storage at a path or URL. Credentials and endpoint come from `settings`, by default from
    the environment and the config file.

    `retries` limits how often a remote storage repeats a failed request before it raises.
    """
    text = os.fspath(where)
    scheme, marked, _ = text.partition("://")
    if not marked:
        if not text:
            raise InvalidArgument(
                "the storage path is empty", hint="give a folder or s3://bucket/prefix"
            )
        return LocalStorage(Path(text).expanduser())
    url = urlsplit(text)
    if scheme == "file" and url.netloc in ("", "localhost"):
        return LocalStorage(unquote(url.path))
    if scheme == "s3" and url.netloc and not (url.query or url.fragment):
        extras.check("obstore")
        # Imported here: a run on local disk needs neither this library nor its import time.
        from strata.storage.s3 import S3Storage

        limits = {} if retries is None else {"max_retries": retries}
        return S3Storage(url.netloc, url.path.strip("/"), settings or load_process({}), **limits)
    raise InvalidArgument(
        f"{text!r} is not a known kind of storage",
        hint="give a folder, or s3://bucket/prefix (any S3 server: AWS_ENDPOINT_URL names it)",
    )


def configured_storage(settings: Settings) -> StorageBackend:
    """The storage that `STORAGE_BACKEND` and the related settings describe."""
    if settings.storage_backend == "s3":
        if not settings.checkpoint_bucket:
            raise InvalidArgument(
                "STORAGE_BACKEND is s3, but no bucket is set", hint="set CHECKPOINT_BUCKET"
            )
        bucket = settings.checkpoint_bucket.removeprefix("s3://")
        return open_storage(f"s3://{bucket}", settings)
    return open_storage(settings.checkpoint_dir or Path(settings.data_dir, "checkpoints"), settings)
