"""`run.json`: the description of an exported run, readable without Arrow."""

from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from strata.errors import UNDECODABLE, Corrupt
from strata.timeline.answers import RunFork

RUN = "run.json"
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Wanted = TypeVar("Wanted", bound=Struct)


class WorkerStream(Struct, frozen=True):
    """Totals of one worker's incarnation, and the gaps in its sequence numbers."""

    node: str
    incarnation: Natural
    events: Natural
    wall_from_ns: int
    wall_to_ns: int
    kinds: list[str]
    last_seq: Natural
    gaps: list[tuple[Natural, Natural]]


class RunFile(Struct, frozen=True):
    """The content of `run.json`; times are Unix milliseconds.

    `task` is the task of the run; empty if it is a whole log. `forks` are those among `tasks`.
    """

    format: int
    name: str
    position: Natural
    first_position: Natural
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
    return decode_run((folder / RUN).read_bytes(), f"{folder / RUN}", RunFile)


def decode_run(data: bytes, where: str, wanted: type[Wanted]) -> Wanted:
    """The description of a run, or the fields of it that `wanted` has."""
    try:
        return msgspec.json.decode(data, type=wanted)
    except UNDECODABLE as error:
        raise Corrupt(
            f"{where} is not a valid run description: {error}", hint="export the run again"
        ) from error
