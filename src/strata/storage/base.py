"""The protocol every object storage keeps.

A storage holds *objects*: immutable byte strings under names such as `step-7/part-0.safetensors`.
Names are relative, use `/`, and never leave the root. There are no folders as such; `list` groups
by the first `/` so that one level can be shown without reading the rest.

What a storage promises. An object appears whole or not at all: a reader never sees half of one,
whoever dies when. When `put` or `put_stream` returns, the object survives a crash. `if_absent` lets
exactly one of several writers win. Reads hand out exactly the bytes asked for or raise. Every
failure is one of Strata's errors, and its hint names the variable or the permission to look at.

Users may write their own: any class with these methods will do.
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
    """What is known of an object without reading it. Seconds are the storage's clock.

    `tag` changes with the content, where the storage has such a thing; clocks of storages may count
    in whole seconds.
    """

    name: str
    size_bytes: int
    modified_s: float
    tag: str = ""


class Listing(Struct, frozen=True):
    """One level of names: the objects, and the prefixes that lead further down."""

    objects: list[ObjectInfo]
    folders: list[str]


class ObjectReader(Protocol):
    """An object held open. When it is deleted meanwhile, it stays readable or reads raise
    `NotFound`; never are other bytes handed out."""

    size_bytes: int

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fills the buffers, one after the other, with the bytes from `offset` on."""

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
    """A reader that can hand out bytes as they come, so that a slow download can be followed."""

    def stream(self, offset: int, size_bytes: int) -> Iterator[memoryview]:
        """Exactly the bytes asked for, in chunks; raises where a reader's `read_into` would."""


@runtime_checkable
class StorageBackend(Protocol):
    """Where objects are kept. Methods may be called from several threads at once."""

    url: str
    """Where this is, as `open_storage` takes it."""

    recycles: bool
    """Whether `put_stream` gains from writing over an object that nobody needs any more."""

    def put(self, name: str, data: Buffer, *, if_absent: bool = False) -> None:
        """Stores an object. With `if_absent`, raises `AlreadyExists` where there is one."""

    def put_stream(
        self,
        name: str,
        chunks: Iterable[Buffer],
        *,
        size_bytes: int | None = None,
        recycle: str | None = None,
    ) -> int:
        """Stores what the chunks make together, parts in parallel; returns the size.

        A chunk must not change before this returns. If the chunks raise, nothing is stored.
        `size_bytes`, where known, lets a backend choose parts large enough for huge objects.
        `recycle` names an object that nobody needs any more: it is gone afterwards, and its space
        may be written over.
        """

    def get(self, name: str) -> bytes:
        """A whole object."""

    def open(self, name: str) -> ObjectReader:
        """Holds an object open for ranged reads, from as many threads as wanted."""

    def download(self, name: str, buffer: memoryview, *, offset: int = 0) -> None:
        """Fills the buffer from `offset` on, by ranges in parallel."""

    def head(self, name: str) -> ObjectInfo:
        """Size and age; raises `NotFound` where there is no such object."""

    def exists(self, name: str) -> bool: ...

    def list(self, folder: str = "") -> Listing:
        """One level below `folder`, sorted by name."""

    def walk(self, folder: str = "") -> Sequence[ObjectInfo]:
        """Every object below `folder`, sorted by name."""

    def delete(self, name: str) -> None:
        """Removes an object; one that is not there is no error."""

    def delete_folder(self, folder: str) -> None:
        """Removes every object below `folder`, finished or half-written."""

    def abort_uploads(self, older_than_s: float) -> int:
        """Frees what uploads of dead writers left behind; returns how many there were."""

    def in_use(self, name: str) -> bool:
        """Whether somebody, also in another process, holds the object open, as far as one can
        tell."""

    def close(self) -> None: ...


@runtime_checkable
class Acknowledged(Protocol):
    """Chunks for `put_stream` whose owner wants to know how much of them the storage has.

    A storage that can tell calls `acknowledged` with 0 before it takes the first chunk and later,
    from any thread, with the number of bytes that it has. What was handed over and is still on its
    way does not count.
    """

    def acknowledged(self, stored_bytes: int) -> None: ...


def acknowledge_to(chunks: Iterable[Buffer]) -> Callable[[int], None] | None:
    """Who wants to know how much of the chunks is stored, if anybody does."""
    return chunks.acknowledged if isinstance(chunks, Acknowledged) else None


@runtime_checkable
class Linking(Protocol):
    """A storage in which an object can be had under a second name without sending it again."""

    def link(self, name: str, other: str) -> bool:
        """Gives an object another name, under which it stays when the first is deleted; False where
        there is no such object any more, or that cannot be done."""


def checked_name(name: str) -> str:
    """The name if it is one that every backend can hold, else `InvalidArgument`."""
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
