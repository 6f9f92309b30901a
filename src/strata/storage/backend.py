"""The protocol that every object storage implements.

A storage holds *objects*: immutable byte strings under names such as `step-7/part-0.safetensors`.
Names are relative, use `/`, and never leave the root. There are no real folders; `list` groups by
the first `/`, so that one level can be listed without reading the rest.

Guarantees. An object appears whole or not at all: no reader ever sees half of one, whichever
process dies when. When `put` or `put_stream` returns, the object survives a crash. `if_absent` lets
exactly one of several writers win. Reads return exactly the requested bytes or raise. Every failure
is one of Strata's errors, and its hint names the variable or the permission to check.

Users may write their own: any class with these methods is accepted.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias, runtime_checkable

from msgspec import Struct

from strata.errors import InvalidArgument

UNUSABLE = re.compile(r"[\x00-\x1f\x7f\\]")
MAX_NAME_BYTES = 900  # S3 allows 1,024 including the prefix

Buffer: TypeAlias = bytes | bytearray | memoryview


class ObjectInfo(Struct, frozen=True):
    """What is known about an object without reading it. Times are of the storage's clock.

    `tag` changes with the content, if the storage has tags; a storage's clock may count whole
    seconds.
    """

    name: str
    size_bytes: int
    modified_s: float
    tag: str = ""


class ObjectListing(Struct, frozen=True):
    """One level of names: the objects, and the prefixes below."""

    objects: list[ObjectInfo]
    folders: list[str]


class ObjectReader(Protocol):
    """An open object. If it is deleted meanwhile, it stays readable or reads raise `NotFound`;
    other bytes are never returned.
    """

    size_bytes: int

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, one after the other, with the bytes from `offset` on."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class StreamingReader(Protocol):
    """A reader that returns bytes as they arrive, so that a slow download shows progress."""

    def stream(self, offset: int, size_bytes: int) -> Iterator[memoryview]:
        """Exactly the requested bytes, in chunks; raises where `read_into` would."""


@runtime_checkable
class StorageBackend(Protocol):
    """A storage of objects. Methods may be called from several threads at once."""

    url: str
    """Its location, as `open_storage` accepts it."""

    recycles: bool
    """Whether `put_stream` is faster when it overwrites an unused object."""

    def put(self, name: str, data: Buffer, *, if_absent: bool = False) -> None:
        """Store an object. With `if_absent`, raises `AlreadyExists` if there is one."""

    def put_stream(
        self,
        name: str,
        chunks: Iterable[Buffer],
        *,
        size_bytes: int | None = None,
        recycle: str | None = None,
    ) -> int:
        """Store the concatenated chunks, parts in parallel; return the size.

        A chunk must not change before this returns. If the chunks raise, nothing is stored.
        `size_bytes`, if known, lets a backend choose parts large enough for huge objects. `recycle`
        names an unused object: it is deleted, and its space may be overwritten.
        """

    def get(self, name: str) -> bytes: ...

    def open(self, name: str) -> ObjectReader:
        """Open an object for ranged reads, from any number of threads."""

    def download(self, name: str, buffer: memoryview, *, offset: int = 0) -> None:
        """Fill the buffer from `offset` on, by parallel range reads."""

    def head(self, name: str) -> ObjectInfo:
        """Size and age; raises `NotFound` if there is no such object."""

    def exists(self, name: str) -> bool: ...

    def list(self, folder: str = "") -> ObjectListing:
        """One level below `folder`, sorted by name."""

    def walk(self, folder: str = "") -> Sequence[ObjectInfo]:
        """Every object below `folder`, sorted by name."""

    def delete(self, name: str) -> None:
        """Delete an object; no error if it does not exist."""

    def delete_folder(self, folder: str) -> None:
        """Delete every object below `folder`, complete or partial."""

    def abort_uploads(self, older_than_s: float) -> int:
        """Delete the partial uploads of dead writers; return how many there were."""

    def in_use(self, name: str) -> bool:
        """Whether any process has the object open, as far as the storage can tell."""

    def close(self) -> None: ...


@runtime_checkable
class Acknowledged(Protocol):
    """Chunks for `put_stream` with a callback for the bytes that the storage has stored.

    A storage that supports this calls `acknowledged` with 0 before it takes the first chunk and
    later, from any thread, with the number of stored bytes. Bytes that are still being sent do not
    count.
    """

    def acknowledged(self, stored_bytes: int) -> None: ...


def acknowledge_to(chunks: Iterable[Buffer]) -> Callable[[int], None] | None:
    """The callback for stored bytes, if the chunks have one."""
    return chunks.acknowledged if isinstance(chunks, Acknowledged) else None


@runtime_checkable
class LinkingStorage(Protocol):
    """A storage that can give an object a second name without sending it again."""

    def link(self, name: str, other: str) -> bool:
        """Give an object another name, which remains when the first is deleted; False if the object
        no longer exists or the storage cannot link it.
        """


def checked_name(name: str) -> str:
    """The name, if every backend can store it; otherwise raises `InvalidArgument`."""
    parts = name.split("/")
    fault = ""
    if not name:
        fault = "is empty"
    elif name.startswith("/"):
        fault = "is absolute"
    elif any(part in ("", ".", "..") for part in parts):
        fault = "has an empty, '.' or '..' part"
    elif UNUSABLE.search(name):
        fault = "has a backslash or a control character"
    elif len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        fault = f"is longer than {MAX_NAME_BYTES} bytes"
    if fault:
        raise InvalidArgument(
            f"the object name {name[:80]!r} {fault}", hint="use relative names such as a/b.bin"
        )
    return name
