"""Checks of the storages of checkpoints: permissions on a bucket, speed and space of a folder.

A bucket is checked by the operations themselves on one small object, `strata-doctor/HOST`. Without
the permission to delete, that object remains.
"""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strata import extras
from strata.cli.support.doctor.check_result import Check, fix, ok, unchecked
from strata.config import Settings
from strata.errors import NotFound, PermissionDenied, StrataError

if TYPE_CHECKING:
    from strata.storage.s3 import S3Storage

FOLDER = "strata-doctor"
DISK_BYTES = 64 * 2**20
CHUNK_BYTES = 4 * 2**20
REQUEST_S = 10.0
NO_BUCKET = "NoSuchBucket"
SET_BUCKET = "set checkpoint_bucket in strata.toml"
PERMISSIONS = ("s3:ListBucket", "s3:PutObject", "s3:GetObject", "s3:DeleteObject")


def storage_checks(settings: Settings) -> list[Check]:
    """The checks of all storages that the settings name."""
    buckets, folders = storages(settings)
    found = [check for url in buckets for check in bucket_checks(url, settings)]
    return found + [check for folder in folders for check in folder_checks(folder, settings)]


def storages(settings: Settings) -> tuple[list[str], list[Path]]:
    """The buckets (s3://bucket/prefix) and folders that the settings name."""
    named = [settings.checkpoint_upload, settings.archive_to]
    if settings.storage_backend == "s3":
        named.append(f"s3://{settings.checkpoint_bucket.removeprefix('s3://')}")
    else:
        named.append(settings.checkpoint_dir or str(Path(settings.data_dir, "checkpoints")))
    buckets = list(dict.fromkeys(each for each in named if each.startswith("s3://")))
    return buckets, [Path(each) for each in dict.fromkeys(named) if each and "://" not in each]


def bucket_checks(url: str, settings: Settings) -> list[Check]:
    """Whether each permission that checkpoints need is there."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not bucket:
        return [fix("bucket", "storage_backend is s3, but no bucket is set", SET_BUCKET)]
    try:
        extras.check("obstore")
        # Imported here: it needs an extra.
        from strata.storage.s3 import S3Storage

        storage = S3Storage(
            bucket,
            prefix.strip("/"),
            settings,
            max_retries=1,
            retry_timeout_s=REQUEST_S,
            request_timeout_s=REQUEST_S,
        )
    except StrataError as error:
        return [fix(f"bucket {bucket}", error.message, error.hint)]
    try:
        return list(_permissions(storage, bucket))
    finally:
        storage.close()


def _permissions(storage: "S3Storage", bucket: str) -> Iterator[Check]:
    """One check for each permission; one alone if the bucket cannot be reached."""
    name = f"{FOLDER}/{socket.gethostname()}"
    operations: dict[str, Callable[[], object]] = {
        "s3:ListBucket": lambda: storage.list(FOLDER),
        "s3:PutObject": lambda: storage.put(name, b"written by strata doctor"),
        "s3:GetObject": lambda: storage.get(name),
        "s3:DeleteObject": lambda: storage.delete(name),
    }
    denied: set[str] = set()
    for permission, operation in operations.items():
        title = f"{permission} on {bucket}"
        try:
            operation()
        except PermissionDenied as error:
            denied.add(permission)
            if permission == "s3:GetObject" and denied >= {"s3:ListBucket", "s3:PutObject"}:
                # For an object that does not exist, S3 then answers the same with and without it.
                yield unchecked(title, "no object could be written or listed")
                continue
            end = "" if permission == "s3:ListBucket" else "/*"
            grant = f"grant {permission} on arn:aws:s3:::{bucket}{end} to this key"
            yield fix(title, f"denied: {error.message}", grant)
        except StrataError as error:
            if isinstance(error, NotFound) and NO_BUCKET not in error.message:
                yield ok(title, "granted")  # the object does not exist, which it may tell
                continue
            yield fix(title, error.message, error.hint)
            later = PERMISSIONS[PERMISSIONS.index(permission) + 1 :]
            for each in later:
                yield unchecked(f"{each} on {bucket}", "the request before it failed")
            return
        else:
            yield ok(title, "granted")


def folder_checks(folder: Path, settings: Settings) -> list[Check]:
    """Whether a folder can be written, how fast, and the free space of its disk."""
    title = f"folder {folder}"
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not place.is_dir():
        return [fix(title, f"{place} is a file", f"rm {place}, or set checkpoint_dir")]
    try:
        speeds = disk_speeds(place)
    except OSError as error:
        reason = f"cannot write to {place}: {error.strerror}"
        owned = f"sudo install -d -o $(whoami) {folder.absolute()}"
        return [fix(title, reason, f"{owned}, or set checkpoint_dir")]
    made = "" if place == folder.absolute() else f" (not created yet; measured in {place})"
    free = shutil.disk_usage(place).free
    found = [ok(f"{title} speed", f"{speeds}{made}")]
    space = f"{free / 2**30:.1f} GiB free"
    if free < settings.alert_disk_free_bytes:
        least = settings.alert_disk_free_bytes / 2**30
        return [*found, fix(f"{title} space", f"{space}, less than {least:.1f} GiB", "free space")]
    return [*found, ok(f"{title} space", space)]


def disk_speeds(folder: Path) -> str:
    """Write a file with fsync and read it back; the speeds of both."""
    block = np.random.default_rng(1).bytes(CHUNK_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began_s = time.perf_counter()
        for _ in range(DISK_BYTES // CHUNK_BYTES):
            file.write(block)
        os.fsync(file.fileno())
        wrote_s = time.perf_counter() - began_s
        # Read from the disk and not from memory; a disk in memory reads from memory.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began_s = time.perf_counter()
        read_bytes = sum(iter(lambda: len(file.read(CHUNK_BYTES)), 0))
        read_s = time.perf_counter() - began_s
    if read_bytes != DISK_BYTES:
        raise OSError(0, f"{read_bytes} of {DISK_BYTES} bytes were read back")
    size = DISK_BYTES / 2**20
    return f"writes {size / wrote_s:,.0f} MiB/s with fsync, reads {size / read_s:,.0f} MiB/s"
