"""Gives tasks' environments to their agents without waiting for a disk on the event loop.

An environment that is not in memory is read in a thread, once for all agents of its task. Until
then agents are told that the task is blocked: its workers go on, none is started. If the
environment cannot be read, a task that waits for workers to start fails with the reason. A task
that trains without them goes on; the file is read again when other workers have to be started.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from strata.coordinator.engine import Engine
from strata.coordinator.vault import Vault
from strata.core.scheduling import FailStart, unstarted
from strata.core.tasks import Task
from strata.errors import StrataError, Unavailable

log = logging.getLogger(__name__)

DELAYS_S = (0.1, 0.5, 2.0)
"""Between attempts to read a file after an error that may pass."""

BEING_READ = "the task's environment is being read"


class Provided(NamedTuple):
    """An environment, or why no worker may be started with it."""

    values: dict[str, str]
    blocked: str


class Fault(NamedTuple):
    """Why an environment could not be read, and for which starts that was tried."""

    reason: str
    starts: dict[str, int]


class Environments:
    """The environments of tasks that have not ended. `tell` tells a task's agents again."""

    def __init__(self, engine: Engine, vault: Vault, tell: Callable[[str], None]) -> None:
        self._engine = engine
        self._vault = vault
        self._tell = tell
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._faults: dict[str, Fault] = {}
        self._discarding: set[asyncio.Task[None]] = set()

    def of(self, task: Task) -> Provided:
        """The environment of a task; begins to read it if it is not in memory."""
        values = self._vault.known(task.spec.env_key)
        if values is not None:
            return Provided(values, "")
        fault = self._faults.get(task.id)
        if task.id not in self._reading and task.state != "stopping":
            starts = unstarted(self._engine.kernel.state, task)
            if fault is None or not starts.items() <= fault.starts.items():
                reading = asyncio.create_task(self._read(task.id, task.spec.env_key, starts))
                self._reading[task.id] = reading
                reading.add_done_callback(lambda _: self._reading.pop(task.id, None))
        return Provided({}, fault.reason if fault is not None else BEING_READ)

    def discard(self, task: Task) -> None:
        """Delete the environment of a task that has ended, in a thread."""
        self._faults.pop(task.id, None)
        if task.spec.env_key:
            work = asyncio.to_thread(self._vault.discard, task.spec.env_key)
            discarding = asyncio.create_task(work)
            self._discarding.add(discarding)
            discarding.add_done_callback(self._discarding.discard)

    async def _read(self, task_id: str, key: str, starts: dict[str, int]) -> None:
        try:
            await self._attempt(key)
        except StrataError as error:
            await self._fail(task_id, str(error), starts)
        else:
            self._faults.pop(task_id, None)
            # The state that agents are told must be on disk.
            async with self._engine.settled():
                self._tell(task_id)

    async def _attempt(self, key: str) -> None:
        for delay_s in DELAYS_S:
            try:
                await asyncio.to_thread(self._vault.read, key)
                return
            except Unavailable as error:
                log.warning("reading again in %g s: %s", delay_s, error)
                await asyncio.sleep(delay_s)
        await asyncio.to_thread(self._vault.read, key)

    async def _fail(self, task_id: str, reason: str, starts: dict[str, int]) -> None:
        task = self._engine.kernel.state.tasks.get(task_id)
        if task is None or task.ended:
            return
        self._faults[task_id] = Fault(reason, starts)
        about = {"task_id": task_id}
        log.error("no worker of task %s can be started: %s", task_id, reason, extra=about)
        try:
            await self._engine.submit(FailStart(task=task_id, reason=f"cannot start: {reason}"))
        except StrataError as error:
            # Forgotten, so that the next message to an agent of the task tries it again.
            self._faults.pop(task_id, None)
            log.error("task %s was not failed: %s", task_id, error, extra=about)
