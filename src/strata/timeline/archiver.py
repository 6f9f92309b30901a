"""A process that archives a run, or compares one with the log, while the coordinator goes on.

Decoding a long run takes minutes of a core and may die for want of memory or disk; neither is to
happen to the coordinator. The job comes as JSON on stdin, since it holds the storage's keys; what
was found goes as JSON to stdout. What goes wrong is one line on stderr and exit code 1.
"""

import os
import sys
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from strata.config import Settings
from strata.errors import Corrupt, StrataError
from strata.store.sqlite.database import SALVAGE
from strata.timeline.excerpt import run_of
from strata.timeline.opening import LOG, open_timeline
from strata.timeline.runfile import Held
from strata.timeline.stretched_log import StretchedLog

NICENESS = 10


class Archive(Struct, frozen=True, tag=True):
    """Keep the run of a task, up to a moment, from a coordinator's folder at a place."""

    data: str
    task: str
    until_ns: int
    where: str
    name: str
    scratch: str
    settings: Settings


class Verify(Struct, frozen=True, tag=True):
    """Find out which events of a coordinator's log an archived run holds as well."""

    data: str
    where: str
    name: str
    settings: Settings


class MoveOut(Struct, frozen=True, tag=True):
    """Write the older half of the events of a running task's workers as a stretch."""

    data: str
    task: str
    streams: list[tuple[str, int]]
    name: str
    settings: Settings


Job: TypeAlias = Archive | Verify | MoveOut


def carry_out(job: Job) -> list[Held]:
    """Does a job; what it found."""
    # Imported here: the coordinator knows what a job is without Arrow.
    from strata.timeline.archiving import archive, open_anywhere
    from strata.timeline.stretches import write_stretch
    from strata.timeline.verifying import held

    with open_timeline(Path(job.data) / LOG, settings=job.settings) as timeline:
        if isinstance(job, MoveOut):
            log = timeline.reader
            if timeline.notes or not isinstance(log, StretchedLog):
                raise Corrupt("the log is damaged, so no events leave it", hint=SALVAGE)
            target = log.folder / job.name
            return write_stretch(timeline, log.log, job.task, set(job.streams), target)
        if isinstance(job, Archive):
            run = run_of(timeline, job.task, job.until_ns)
            archive(run, job.where, job.name, job.settings, job.scratch)
            return []
        with open_anywhere(job.where, job.name, job.settings) as kept:
            return list(held(timeline.reader, kept.reader))


def main() -> None:
    """Does the job on stdin."""
    os.nice(NICENESS)
    try:
        found = carry_out(msgspec.json.decode(sys.stdin.buffer.read(), type=Job))
    except (StrataError, OSError) as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
