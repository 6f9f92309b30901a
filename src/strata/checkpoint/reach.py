"""A storage for reading in which "cannot be reached" and "is damaged" are different errors.

A checkpoint may be given up only because its bytes were read and do not verify. Everything else
that a storage raises (no connection, a missing mount, refused credentials, an object that is not
there) says nothing about the checkpoint: it becomes `Unreachable`, and the read can be tried again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from strata.errors import Corrupt, NotFound, StrataError, Unavailable
from strata.storage.base import ObjectReader, StorageBackend


class Unreachable(Unavailable):
    """Bytes of a checkpoint could not be read; `missing` where the storage has no such object."""

    def __init__(self, message: str, *, hint: str = "", missing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Raises what a storage raises as `Unreachable`, except damage."""
    try:
        yield
    except (Corrupt, Unreachable):
        raise
    except StrataError as error:
        missing = isinstance(error, NotFound)
        raise Unreachable(error.message, hint=error.hint, missing=missing) from error
    except OSError as error:
        raise Unreachable(f"cannot read {url}: {error}") from error


class ReachedStorage:
    """The reading side of a storage."""

    def __init__(self, storage: StorageBackend) -> None:
        self.url = storage.url
        self._storage = storage

    def get(self, name: str) -> bytes:
        """A whole object."""
        with reaching(self.url):
            return self._storage.get(name)

    def open(self, name: str) -> "ReachedObject":
        """Holds an object open for ranged reads."""
        with reaching(self.url):
            return ReachedObject(self.url, self._storage.open(name))


class ReachedObject:
    """An open object of a `ReachedStorage`."""

    def __init__(self, url: str, reader: ObjectReader) -> None:
        self.size_bytes = reader.size_bytes
        self._url, self._reader = url, reader

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fills the buffers, one after the other, with the bytes from `offset` on."""
        with reaching(self._url):
            self._reader.read_into(offset, buffers)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
