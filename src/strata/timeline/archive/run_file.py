"""`run.json`: the description of an exported run, readable without Arrow."""

from pathlib import Path

import msgspec
from msgspec import Struct

from strata.errors import Corrupt
from strata.store.event_store import Range
from strata.timeline.answers import RunFork

RUN = "run.json"


class WorkerStream(Struct, frozen=True):
    """Totals of one worker's incarnation, and the gaps in its sequence numbers."""

    node: str
    incarnation: int
    events: int
    wall_from_ns: int
    wall_to_ns: int
    kinds: list[str]
    last_seq: int
    gaps: list[Range]


class RunFile(Struct, frozen=True):
    """The content of `run.json`; times are Unix milliseconds.

    `task` is the task of the run; empty if it is a whole log. `forks` are those among `tasks`.
    """

    format: int
    name: str
    position: int
    first_position: int
    from_ms: float
    to_ms: float
    tasks: list[str]
    streams: list[WorkerStream]
    findings: list[str]
    task: str = ""
    forks: list[RunFork] = []


class Held(Struct, frozen=True):
    """Events `start` up to `stop` (exclusive) of a worker's incarnation, which an archived run or a
    stretch also has."""

    node: str
    incarnation: int
    stop: int
    events: int
    start: int = 0


def read_run(folder: Path) -> RunFile:
    """Read the description of an exported run."""
    try:
        return msgspec.json.decode((folder / RUN).read_bytes(), type=RunFile)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"{folder / RUN} is not a valid run description: {error}", hint="export the run again"
        ) from error
