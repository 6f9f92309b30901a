"""`run.json`: what is known of an exported run without reading its rows, nor needing Arrow."""

from pathlib import Path

import msgspec
from msgspec import Struct

from strata.errors import Corrupt
from strata.store.base import Range

RUN = "run.json"


class Stream(Struct, frozen=True):
    """What is known of one worker's incarnation beyond its rows."""

    node: str
    incarnation: int
    events: int
    wall_from_ns: int
    wall_to_ns: int
    kinds: list[str]
    last_seq: int
    gaps: list[Range]


class RunFile(Struct, frozen=True):
    """`run.json`: what the rows cannot tell; times are Unix milliseconds.

    `task` is the one whose run this is; empty when it is a whole log.
    """

    format: int
    name: str
    position: int
    first_position: int
    from_ms: float
    to_ms: float
    tasks: list[str]
    streams: list[Stream]
    findings: list[str]
    task: str = ""


class Held(Struct, frozen=True):
    """What the log has of a worker's incarnation from seq `start` to before `stop` is all in an
    archived run, or in a stretch."""

    node: str
    incarnation: int
    stop: int
    events: int
    start: int = 0


def read_run(folder: Path) -> RunFile:
    """What is known of an exported run without reading its rows."""
    try:
        return msgspec.json.decode((folder / RUN).read_bytes(), type=RunFile)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"{folder / RUN} is not the description of a run: {error}", hint="export it again"
        ) from error
