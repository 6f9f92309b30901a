"""Fixtures: a supervisor without a coordinator, and scripts for its workers."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import psutil
import pytest

from strata.agent.warm_start import Templates
from strata.agent.worker_plan import Start
from strata.agent.worker_supervisor import WorkerSupervisor
from strata.wire.v1 import coordinator_pb2 as pb

WAIT_S = 20.0


async def until(condition, what="it"):
    """Wait for a condition; returns its result."""
    deadline = time.monotonic() + WAIT_S
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        await asyncio.sleep(0.005)
    return result


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Watched:
    """A supervisor with given duties, and what it would send."""

    def __init__(self, folder, cards, warm_after_s):
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        templates = None if warm_after_s is None else Templates(warm_after_s)
        identity = {"COORDINATOR_ADDR": "127.0.0.1:1"}
        self.supervisor = WorkerSupervisor(folder, identity, cards, templates)
        self.supervisor.open()
        self.dropped = 0
        self.written = []

    def want(self, script, *starts, args=(), grace_s=5.0, stopping=False, **given):
        """Set these starts of workers of a task `t` as its duties."""
        job = pb.Job(
            task_id="t",
            entry=str(script),
            args=args,
            grace_ms=int(grace_s * 1000),
            stopping=stopping,
            world_size=len(starts),
            seats=[pb.Seat(worker_id=worker, start=number) for worker, number in starts],
            **given,
        )
        self.supervisor.apply_duties(pb.Duties(jobs=[job]))

    def want_nothing(self, completed=()):
        self.supervisor.apply_duties(pb.Duties(completed_task_ids=completed))

    def lines(self):
        """All output so far."""
        while (output := self.supervisor.take_output()) is not None:
            self.dropped += output.logs.dropped
            self.written += [line.message for line in output.logs.lines]
            last = output.logs.first + len(output.logs.lines) - 1 + bool(output.logs.dropped)
            taken = pb.OutputTaken(sender=output.logs.sender, lines=last)
            self.supervisor.output_taken(taken)
        return self.written

    async def exit(self, worker="w", number=1):
        start = Start("t", worker, number)
        return await until(lambda: self.supervisor.exits.get(start), f"the end of {start}")


@pytest.fixture
def watching(tmp_path):
    @asynccontextmanager
    async def watch(folder=tmp_path / "agent", cards=(), warm_after_s=None):
        watched = Watched(folder, cards, warm_after_s)
        try:
            yield watched
        finally:
            watched.supervisor.kill_all()
            await watched.supervisor.end_all()

    return watch


@pytest.fixture
def script(tmp_path):
    """Write a script; returns its path."""

    def write(text, name="train.py"):
        file = tmp_path / name
        file.write_text(text, "utf-8")
        return file

    return write


def said(lines):
    """The last JSON object among lines."""
    return next((json.loads(line) for line in reversed(lines) if line.startswith("{")), None)
