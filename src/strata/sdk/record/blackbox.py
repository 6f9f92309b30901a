"""The black box: the newest events of a worker in a memory-mapped file that survives its crash.

Events are packed into the spool once a second; events that are not packed yet would be lost with
the process. So each event is also written at once to a memory-mapped file: that needs no system
call, and the kernel keeps the pages however the process ends. The agent that delivers the spool of
an ended process reads the rest of its events here.

The blocks of the file are allocated when it is made: a write to a mapped page for which a full disk
has no block ends the process (SIGBUS). Where that is impossible, the ring is in memory only.

The file has a header (the node, the last spooled event, the next seq) and a ring of slots of equal
size. An event that does not fit into a slot is missing here, and counted.
"""

import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct as Layout
from typing import BinaryIO

import msgspec

from strata.core.workers.worker_facts import EventsDropped
from strata.errors import UNDECODABLE
from strata.store.event_batches import deflate
from strata.store.event_store import Batch

log = logging.getLogger(__name__)

SUFFIX = ".newest"
SLOTS = 1_024
SLOT_BYTES = 256
HEADER_BYTES = 512
FILE_BYTES = HEADER_BYTES + SLOTS * SLOT_BYTES
NAME_AT, NAME_BYTES = 32, 400

_header = Layout("<qqq")
_encode = msgspec.msgpack.Encoder().encode
_lengths = [size.to_bytes(1, "little") for size in range(SLOT_BYTES)]


class Noted(msgspec.Struct, array_like=True, gc=False):
    """An event in a slot, with the number of its emission instead of its seq."""

    number: int
    wall_ns: int
    mono_ns: int
    body: msgspec.Raw
    cause: tuple[str, ...] = ()
    op: str = ""


_decoder = msgspec.msgpack.Decoder(Noted)
_tag = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_text = msgspec.msgpack.Decoder(str)


class BlackBox:
    """The ring of one incarnation. `note` is thread-safe."""

    def __init__(self, path: Path, node: str, incarnation: int) -> None:
        self._path = path
        with path.open("w+b") as file:
            self._map = _mapped(file)
        name = node.encode()[:NAME_BYTES]
        self._map[NAME_AT : NAME_AT + len(name)] = name
        self._incarnation = incarnation
        self.collected(-1, 0)

    def note(self, number: int, event: tuple[object, ...]) -> None:
        """Write an event; one that cannot be written is left out."""
        try:
            data = _encode(event)
            size = len(data)
            if size < SLOT_BYTES:
                at = HEADER_BYTES + number % SLOTS * SLOT_BYTES
                self._map[at : at + size + 1] = _lengths[size] + data
        except Exception:  # recording must never fail the training script
            return

    def crowded(self, number: int) -> bool:
        """Whether events must be packed soon, before the ring overwrites them."""
        return number - self._collected > SLOTS // 2

    def collected(self, number: int, next_seq: int) -> None:
        """Note that the events up to a number are in the spool."""
        self._collected = number
        _header.pack_into(self._map, 0, self._incarnation, number, next_seq)

    def close(self, *, keep: bool) -> None:
        """Close the file, and delete it unless another process will read it."""
        self._map.close()
        if not keep:
            self._path.unlink(missing_ok=True)


def _mapped(file: BinaryIO) -> mmap.mmap:
    """Map a new file with all its blocks, or memory without a file if the disk has no room."""
    try:
        file.truncate(FILE_BYTES)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
    except OSError as error:
        log.warning("%s cannot be written; a crash loses the newest events: %s", file.name, error)
        file.truncate(0)
        return mmap.mmap(-1, FILE_BYTES)
    return mmap.mmap(file.fileno(), 0)


def read_newest(path: Path, spooled_seq: int) -> Batch | None:
    """The events of an ended process that are not in its spool, as a batch after `spooled_seq`."""
    data = path.read_bytes()
    if len(data) < HEADER_BYTES:
        return None
    incarnation, last_number, next_seq = _header.unpack_from(data)
    name = data[NAME_AT : NAME_AT + NAME_BYTES].rstrip(b"\0").decode()
    found = sorted(
        (each for each in _slots(data) if each.number > last_number),
        key=lambda noted: noted.number,
    )
    # Killed between writing the spool and noting it here: the first of these are in the spool.
    found = found[max(spooled_seq + 1 - next_seq, 0) :]
    first_seq = max(next_seq, spooled_seq + 1)
    return _packed(found, name, incarnation, first_seq) if found else None


def _slots(data: bytes) -> Iterator[Noted]:
    for at in range(HEADER_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        size = data[at]
        if size:
            try:
                yield _decoder.decode(data[at + 1 : at + 1 + size])
            except UNDECODABLE:
                continue  # the process was killed while writing it


def _packed(found: list[Noted], node: str, incarnation: int, first_seq: int) -> Batch:
    """The events with their seqs, preceded by an event for missing ones."""
    missing = found[-1].number - found[0].number + 1 - len(found)
    if missing:
        fact = EventsDropped(
            count=missing, reason="they did not fit into the black box of a killed process"
        )
        word = Noted(
            number=0,
            wall_ns=found[0].wall_ns,
            mono_ns=found[0].mono_ns,
            body=msgspec.Raw(_encode(fact)),
        )
        found = [word, *found]
    for seq, each in enumerate(found, first_seq):
        each.number = seq
    walls = [each.wall_ns for each in found]
    kinds = {_text.decode(_tag.decode(each.body)["kind"]) for each in found}
    payload = deflate(_encode(found))
    return Batch(
        node=node,
        incarnation=incarnation,
        first_seq=first_seq,
        count=len(found),
        wall_from_ns=min(walls),
        wall_to_ns=max(walls),
        kinds=tuple(sorted(kinds)),
        payload=payload,
    )
