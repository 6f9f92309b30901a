"""Rows read straight from the pages of an SQLite file, without using its trees.

For salvage only. The trees say which page follows which; when one page of them is damaged, whole
branches cannot be reached although their leaves are intact. So every page of the main file and
every frame of the write-ahead log is examined as if it were a leaf of a table, and whatever has the
form of a row is returned. The caller checks its checksum.

The format is SQLite's, fixed since 2004 (sqlite.org/fileformat2.html). A leaf has 8 bytes of
header, then two-byte pointers to its cells; a cell is the size of the row, its number, and the row;
what does not fit continues in a chain of overflow pages.
"""

import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from strata.store.sqlite.database import PAGE_BYTES
from strata.store.sqlite.lock_files import beside

WAL_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
MAX_ROW_BYTES = 1_000_000_000
MAX_COLUMNS = 16
MISSES = 8  # pointers in a row that lead nowhere, after which a page is given up

LOCAL_MOST = PAGE_BYTES - 35
LOCAL_LEAST = (PAGE_BYTES - 12) * 32 // 255 - 23

Values: TypeAlias = list[Any]

_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def rows(store: Path) -> Iterator[Values]:
    """Everything in the file and its write-ahead log that has the form of a row.

    The row's number stands in for its first column, as in all tables here. The main file comes
    first, then the log from its start: of two rows with the same number the first is the true
    one, since what follows the last commit in a log are remains of writes that failed.
    """
    with _Pages(store) as pages:
        for page in pages:
            yield from _rows_of(page, pages)


class _Pages:
    """The pages of a store: all of them, and by number for overflow chains."""

    def __init__(self, store: Path) -> None:
        self._main = store.open("rb") if store.exists() else BytesIO()
        wal = beside(store, "-wal")
        self._wal = wal.open("rb") if wal.exists() else None
        self._frames: dict[int, int] = {}
        for offset, number in self._walk_wal():
            self._frames[number] = offset

    def __enter__(self) -> "_Pages":
        return self

    def __exit__(self, *_: object) -> None:
        self._main.close()
        if self._wal is not None:
            self._wal.close()

    def _walk_wal(self) -> Iterator[tuple[int, int]]:
        """Offset and page number of every whole frame."""
        offset = WAL_HEADER_BYTES
        while self._wal is not None:
            self._wal.seek(offset)
            frame = self._wal.read(FRAME_HEADER_BYTES + PAGE_BYTES)
            if len(frame) < FRAME_HEADER_BYTES + PAGE_BYTES:
                return
            yield offset + FRAME_HEADER_BYTES, int.from_bytes(frame[:4], "big")
            offset += len(frame)

    def __iter__(self) -> Iterator[bytes]:
        number = 2  # the first page holds the names of the tables
        while page := self._main_page(number):
            yield page
            number += 1
        for offset, _ in self._walk_wal():
            yield self._wal_page(offset)

    def candidates(self, number: int) -> Iterator[bytes]:
        """The page of that number, the newest version first."""
        if number in self._frames:
            yield self._wal_page(self._frames[number])
        if page := self._main_page(number):
            yield page

    def _main_page(self, number: int) -> bytes:
        self._main.seek((number - 1) * PAGE_BYTES)
        page = self._main.read(PAGE_BYTES)
        return page if len(page) == PAGE_BYTES else b""

    def _wal_page(self, offset: int) -> bytes:
        assert self._wal is not None
        self._wal.seek(offset)
        return self._wal.read(PAGE_BYTES)


def _rows_of(page: bytes, pages: _Pages) -> Iterator[Values]:
    """The rows of a page. Its type and number of cells are not trusted; pointers are tried in
    turn."""
    misses = 0
    for at in range(8, PAGE_BYTES - 1, 2):
        (pointer,) = struct.unpack_from(">H", page, at)
        found = list(_rows_at(page, pointer, pages)) if pointer > at else []
        yield from found
        misses = 0 if found else misses + 1
        if misses == MISSES:
            return


def _rows_at(page: bytes, at: int, pages: _Pages) -> Iterator[Values]:
    try:
        size, at = _varint(page, at)
        number, at = _varint(page, at)
        if not 2 <= size <= MAX_ROW_BYTES or not _plausible(page, at):
            return
        for payload in _payloads(page, at, size, pages):
            values = _values(payload)
            yield [number, *values[1:]]
    except (IndexError, ValueError, struct.error):
        return


def _plausible(page: bytes, at: int) -> bool:
    """Whether a row can start here: it begins with the length of its list of types, and its first
    column is not stored."""
    return 2 < page[at] <= 9 * MAX_COLUMNS and page[at + 1] == 0


def _payloads(page: bytes, at: int, size: int, pages: _Pages) -> Iterator[bytes]:
    """The bytes of a row; two candidates when versions of its overflow pages differ."""
    if size <= LOCAL_MOST:
        yield page[at : at + size]
        return
    local = LOCAL_LEAST + (size - LOCAL_LEAST) % (PAGE_BYTES - 4)
    local = local if local <= LOCAL_MOST else LOCAL_LEAST
    start = page[at : at + local]
    (overflow,) = struct.unpack_from(">I", page, at + local)
    seen: set[bytes] = set()
    for newest in (True, False):
        payload = _chain(start, overflow, size, pages, newest)
        if len(payload) == size and payload not in seen:
            seen.add(payload)
            yield payload


def _chain(start: bytes, number: int, size: int, pages: _Pages, newest: bool) -> bytes:
    chunks, length = [start], len(start)
    while number and length < size:
        versions = list(pages.candidates(number))
        if not versions:
            break
        page = versions[0 if newest else -1]
        number = int.from_bytes(page[:4], "big")
        chunks.append(page[4 : 4 + size - length])
        length += len(chunks[-1])
    return b"".join(chunks)


def _values(payload: bytes) -> Values:
    header, at = _varint(payload, 0)
    types = []
    while at < header:
        kind, at = _varint(payload, at)
        types.append(kind)
    if len(types) > MAX_COLUMNS:
        raise ValueError("too many columns")
    values: Values = []
    for kind in types:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise ValueError("the columns do not fill the row")
    return values


def _value(payload: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    if kind in _INTEGER_BYTES:
        stop = at + _INTEGER_BYTES[kind]
        return int.from_bytes(payload[at:stop], "big", signed=True), stop
    if kind < 12:
        raise ValueError("no table here has such a column")
    stop = at + (kind - 12) // 2
    value = payload[at:stop]
    return (value if kind % 2 == 0 else value.decode("utf-8")), stop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(at, at + 8):
        byte = data[index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, index + 1
    return value << 8 | data[at + 8], at + 9
