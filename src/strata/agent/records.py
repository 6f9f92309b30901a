"""What an agent remembers across its own restart: its children, and what it still has to say.

One JSON file, replaced as a whole. It holds the nonce by which the coordinator recognises the
agent, the processes that run with their pid and birth (a pid alone may have become somebody
else's), the last start of each worker that ended here, and exits that are not acknowledged yet.
A lock beside it keeps a second agent out of the folder.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, field

from strata.agent.plan import Start
from strata.errors import AlreadyExists
from strata.files import write_whole

FILE = "agent.json"


class Kept(Struct, frozen=True):
    """A process that runs, in a slot; `key` names its pipes. Without a pid it was about to be
    started."""

    start: Start
    key: str
    grace_s: float
    pid: int = 0
    born_s: float = 0.0
    slot: int = 0


class Exit(Struct, frozen=True):
    """How a process ended; -1 where nobody could see its code."""

    start: Start
    code: int
    signal: int = 0


class Records(Struct):
    """All that is remembered."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    children: list[Kept] = field(default_factory=list)
    ended: list[Start] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)


def load(folder: Path) -> Records:
    """What was remembered; what cannot be read counts as nothing."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Records)
    except (FileNotFoundError, msgspec.DecodeError):
        return Records()


def save(folder: Path, records: Records) -> None:
    """Write the records; they are on disk when the call returns."""
    write_whole(folder / FILE, msgspec.json.encode(records))


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Has the folder to itself until the block ends."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise AlreadyExists(
            f"another agent works in {folder}", hint="stop it, or give this one another --name"
        ) from None
    try:
        yield
    finally:
        os.close(lock)
