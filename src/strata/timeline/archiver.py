"""A process that archives one run: the coordinator starts it, so that it can go on meanwhile.

Decoding a long run takes minutes of a core and may die for want of memory or disk; neither is to
happen to the coordinator. The job comes as JSON on stdin, since it holds the storage's keys. What
goes wrong is one line on stderr and exit code 1.
"""

import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from strata.config import Settings
from strata.errors import StrataError
from strata.timeline.excerpt import run_of
from strata.timeline.opening import LOG, open_timeline

NICENESS = 10


class Job(Struct, frozen=True):
    """Keep the run of a task, up to a moment, from a coordinator's folder at a place."""

    data: str
    task: str
    until_ns: int
    where: str
    name: str
    scratch: str
    settings: Settings


def carry_out(job: Job) -> None:
    """Archives the run."""
    # Imported here: the coordinator knows what a job is without Arrow.
    from strata.timeline.archiving import archive

    with open_timeline(Path(job.data) / LOG) as timeline:
        run = run_of(timeline, job.task, job.until_ns)
        archive(run, job.where, job.name, job.settings, job.scratch)


def main() -> None:
    """Does the job on stdin."""
    os.nice(NICENESS)
    try:
        carry_out(msgspec.json.decode(sys.stdin.buffer.read(), type=Job))
    except (StrataError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
