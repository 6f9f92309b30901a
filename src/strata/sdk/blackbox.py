"""The newest events of a worker, kept where they outlive it.

Events are packed into the spool once a second, and what is not packed yet would die with the
process. So each one is also written, as it happens, into a file that is mapped into memory: that is
no system call, and whatever kills the process, the kernel keeps the pages. Whoever delivers what a
dead process left reads the rest of its events here.

The file is a header (whose events they are, up to which one everything is in the spool, and the seq
that comes next) and a ring of slots of one size. An event that does not fit into a slot is missing
here, and counted.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from struct import Struct as Layout

import msgspec

from strata.core.worker_facts import EventsDropped
from strata.store.base import Batch
from strata.store.batches import deflate

SUFFIX = ".newest"
SLOTS = 1_024
SLOT_BYTES = 256
HEADER_BYTES = 512
NAME_AT, NAME_BYTES = 32, 400

_header = Layout("<qqq")
_encode = msgspec.msgpack.Encoder().encode
_lengths = [size.to_bytes(1, "little") for size in range(SLOT_BYTES)]


class Noted(msgspec.Struct, array_like=True, gc=False):
    """An event as it lies in a slot: the number of its emission in place of its seq."""

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
    """The ring of one incarnation. `note` from any thread."""

    def __init__(self, path: Path, node: str, incarnation: int) -> None:
        self._path = path
        with path.open("w+b") as file:
            file.truncate(HEADER_BYTES + SLOTS * SLOT_BYTES)
            self._map = mmap.mmap(file.fileno(), 0)
        name = node.encode()[:NAME_BYTES]
        self._map[NAME_AT : NAME_AT + len(name)] = name
        self._incarnation = incarnation
        self.collected(-1, 0)

    def note(self, number: int, event: tuple[object, ...]) -> None:
        """Keeps an event; one that cannot be kept is left out."""
        try:
            data = _encode(event)
            size = len(data)
            if size < SLOT_BYTES:
                at = HEADER_BYTES + number % SLOTS * SLOT_BYTES
                self._map[at : at + size + 1] = _lengths[size] + data
        except Exception:  # an observer must not disturb what it observes
            return

    def crowded(self, number: int) -> bool:
        """Whether it is time to pack what has gathered, before it is overwritten."""
        return number - self._collected > SLOTS // 2

    def collected(self, number: int, next_seq: int) -> None:
        """Events up to a number are in the spool."""
        self._collected = number
        _header.pack_into(self._map, 0, self._incarnation, number, next_seq)

    def close(self, *, keep: bool) -> None:
        """Close the file, and remove it unless another process will read it."""
        self._map.close()
        if not keep:
            self._path.unlink(missing_ok=True)


def read_newest(path: Path, spooled_seq: int) -> Batch | None:
    """What a process left that was not packed yet, as one batch after seq `spooled_seq`."""
    data = path.read_bytes()
    if len(data) < HEADER_BYTES:
        return None
    incarnation, last_number, next_seq = _header.unpack_from(data)
    name = data[NAME_AT : NAME_AT + NAME_BYTES].rstrip(b"\0").decode()
    found = sorted(
        (each for each in _slots(data) if each.number > last_number),
        key=lambda noted: noted.number,
    )
    # Killed between writing the spool and saying so here: the first of these are in it.
    found = found[max(spooled_seq + 1 - next_seq, 0) :]
    first_seq = max(next_seq, spooled_seq + 1)
    return _packed(found, name, incarnation, first_seq) if found else None


def _slots(data: bytes) -> Iterator[Noted]:
    for at in range(HEADER_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        size = data[at]
        if size:
            try:
                yield _decoder.decode(data[at + 1 : at + 1 + size])
            except msgspec.DecodeError:
                continue  # torn by the kill


def _packed(found: list[Noted], node: str, incarnation: int, first_seq: int) -> Batch:
    """The events with their seqs, after a word about those that are missing among them."""
    missing = found[-1].number - found[0].number + 1 - len(found)
    if missing:
        fact = EventsDropped(missing, "they did not fit into the black box of a killed process")
        word = Noted(0, found[0].wall_ns, found[0].mono_ns, msgspec.Raw(_encode(fact)))
        found = [word, *found]
    for seq, each in enumerate(found, first_seq):
        each.number = seq
    walls = [each.wall_ns for each in found]
    kinds = {_text.decode(_tag.decode(each.body)["kind"]) for each in found}
    payload = deflate(_encode(found))
    return Batch(
        node,
        incarnation,
        first_seq,
        len(found),
        min(walls),
        max(walls),
        tuple(sorted(kinds)),
        payload,
    )
