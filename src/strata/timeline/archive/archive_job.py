"""A separate process that archives a run, or verifies an archived one, for the coordinator.

Decoding a long run takes minutes of CPU time and may run out of memory or disk, which must not
affect the coordinator. The job is JSON on stdin, because it contains the storage keys; the result
is JSON on stdout. An error is one line on stderr and exit code 1.
"""

import os
import sys
from typing import TypeAlias

import msgspec
from msgspec import Struct

from strata.config import Settings
from strata.errors import Corrupt, StrataError
from strata.store.sqlite.database import SALVAGE
from strata.timeline.archive.run_excerpt import run_of
from strata.timeline.archive.run_file import Held
from strata.timeline.archive.run_lookup import open_own
from strata.timeline.archive.segmented_log import SegmentedLog

NICENESS = 10


class Archive(Struct, frozen=True, tag=True):
    """Archive the run of a task, up to a moment, to `where`."""

    task: str
    until_ns: int
    where: str
    name: str
    scratch: str
    settings: Settings


class Verify(Struct, frozen=True, tag=True):
    """Find the events of a log that an archived run also has."""

    where: str
    name: str
    settings: Settings


class MoveOut(Struct, frozen=True, tag=True):
    """Write the older half of the worker events of a running task to a file beside the log."""

    task: str
    streams: list[tuple[str, int]]
    name: str
    settings: Settings


Job: TypeAlias = Archive | Verify | MoveOut


def carry_out(job: Job) -> list[Held]:
    """Run a job and return its result."""
    # Imported here: the coordinator imports the job classes without Arrow.
    from strata.timeline.archive.run_archive import archive, held, open_anywhere
    from strata.timeline.archive.segment_writer import write_stretch

    with open_own(job.settings) as timeline:
        if isinstance(job, MoveOut):
            log = timeline.reader
            if timeline.notes or not isinstance(log, SegmentedLog):
                raise Corrupt("the log is damaged, so no events are moved out of it", hint=SALVAGE)
            target = log.folder / job.name
            return write_stretch(timeline, log.log, job.task, set(job.streams), target)
        if isinstance(job, Archive):
            run = run_of(timeline, job.task, job.until_ns)
            archive(run, job.where, job.name, job.settings, job.scratch)
            return []
        with open_anywhere(job.where, job.name, job.settings) as kept:
            return list(held(timeline.reader, kept.reader))


def main() -> None:
    """Run the job on stdin."""
    os.nice(NICENESS)
    try:
        found = carry_out(msgspec.json.decode(sys.stdin.buffer.read(), type=Job))
    except (StrataError, OSError) as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
