"""The records of an agent that survive its restart: its children, and unacknowledged exits.

One JSON file, replaced atomically. It contains the nonce by which the coordinator recognizes the
agent, the running processes with pid and start time (a pid may be reused), the last start of each
worker that ended here, and exits that are not acknowledged yet. A lock file keeps a second agent
out of the folder.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, field

from strata.agent.worker_plan import Start
from strata.errors import UNDECODABLE, AlreadyExists
from strata.files import write_whole

FILE = "agent.json"


class ChildRecord(Struct, frozen=True):
    """A running process in a slot; `key` names its pipes. Without a pid it may not have started."""

    start: Start
    key: str
    grace_s: float
    pid: int = 0
    born_s: float = 0.0
    slot: int = 0


class Exit(Struct, frozen=True):
    """How a process ended; the code is -1 if it is unknown. `gpus` are those that it had."""

    start: Start
    code: int
    signal: int = 0
    gpus: list[str] = field(default_factory=list)


class Records(Struct):
    """All records of an agent."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    children: list[ChildRecord] = field(default_factory=list)
    ended: list[Start] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)


def load(folder: Path) -> Records:
    """Read the records; a missing or unreadable file gives empty ones."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Records)
    except (FileNotFoundError, *UNDECODABLE):
        return Records()


def save(folder: Path, records: Records) -> None:
    """Write the records; they are on disk when the call returns."""
    write_whole(folder / FILE, msgspec.json.encode(records))


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock until the block ends."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise AlreadyExists(
            f"another agent is running in {folder}", hint="stop it, or use another --name"
        ) from None
    try:
        yield
    finally:
        os.close(lock)
