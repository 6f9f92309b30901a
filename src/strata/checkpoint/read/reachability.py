"""Read access to a storage that distinguishes "cannot be reached" from "is damaged".

A checkpoint is given up only if its bytes were read and do not match their checksums. Any other
error of a storage (no connection, a missing mount, refused credentials, a missing object) says
nothing about the checkpoint: it becomes `Unreachable`, and the read can be tried again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from strata.errors import Corrupt, NotFound, StrataError, Unavailable
from strata.storage.backend import ObjectReader, StorageBackend


class Unreachable(Unavailable):
    """Bytes of a checkpoint could not be read; `missing` if the storage has no such object."""

    def __init__(self, message: str, *, hint: str = "", missing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing


@contextmanager
def as_unreachable(url: str) -> Iterator[None]:
    """Turn errors of a storage into `Unreachable`, except damage."""
    try:
        yield
    except (Corrupt, Unreachable):
        raise
    except StrataError as error:
        missing = isinstance(error, NotFound)
        raise Unreachable(error.message, hint=error.hint, missing=missing) from error
    except OSError as error:
        raise Unreachable(f"cannot read {url}: {error}") from error


class ReadOnlyStorage:
    """Read access to a storage; raises `Unreachable` or damage."""

    def __init__(self, storage: StorageBackend) -> None:
        self.url = storage.url
        self._storage = storage

    def get(self, name: str) -> bytes:
        with as_unreachable(self.url):
            return self._storage.get(name)

    def open(self, name: str) -> "ReadOnlyObject":
        """Open an object for ranged reads."""
        with as_unreachable(self.url):
            return ReadOnlyObject(self.url, self._storage.open(name))


class ReadOnlyObject:
    """An open object of a `ReadOnlyStorage`."""

    def __init__(self, url: str, reader: ObjectReader) -> None:
        self.size_bytes = reader.size_bytes
        self._url, self._reader = url, reader

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, one after the other, with the bytes from `offset` on."""
        with as_unreachable(self._url):
            self._reader.read_into(offset, buffers)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
