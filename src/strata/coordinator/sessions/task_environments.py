"""Environment values of tasks: stored outside the log, sent to agents.

The log is never rewritten, so it must not hold secrets. A fact has the names of the variables and a
key; the values are in a file with that name which only the coordinator's user can read, or in the
store where several coordinators share one. They are
cached in memory, so that the file of a task is read once after a restart, however many agents run
its workers. Methods that access files are called in threads; `known` may be called on the event
loop. Files that no task needs are deleted.

An environment that is not in memory is read in a thread, once for all agents of its task. Until
then the agents receive the task as blocked: its workers keep running, none is started. If the
environment cannot be read, a task that waits for workers to start fails with the reason. A task
that trains without them continues; the file is read again when other workers have to be started.
"""

import asyncio
import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from strata.coordinator.engine.engine import Engine
from strata.core.state import Cluster
from strata.core.task_state import Task
from strata.core.tasks.placement import FailStart, unstarted
from strata.errors import UNDECODABLE, Corrupt, NotFound, StrataError, Unavailable
from strata.files import write_whole

if TYPE_CHECKING:
    from strata.store.postgres import PostgresStore

log = logging.getLogger(__name__)

KEY_FILE = re.compile(r"[0-9a-f]{32}(\.new)?")
"""The file of a key, or the draft that a crash left; no other file is deleted."""

PREFIX = "environment/"
"""Begins the names of environments among the secrets of a store."""

LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Read errors that a retry does not fix."""


class Vault:
    """Environments by key, in the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, str]] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"the folder {folder} for tasks' environments cannot be created: {error.strerror}",
                hint="make the data folder writable for the coordinator's user",
            ) from error

    def keep(self, environment: Mapping[str, str]) -> str:
        """Store an environment and return its key; an empty one has the key ''."""
        if not environment:
            return ""
        key = secrets.token_hex(16)
        self._store(key, msgspec.json.encode(dict(environment)))
        self._known[key] = dict(environment)
        return key

    def _store(self, key: str, content: bytes) -> None:
        try:
            write_whole(self._folder / key, content)
        except OSError as error:
            raise Unavailable(
                f"the task's environment cannot be stored: {error.strerror}",
                hint=f"free space in {self._folder}, or make it writable, and submit again",
            ) from error

    def known(self, key: str) -> dict[str, str] | None:
        """The environment of a key if it is in memory; reads no file."""
        return self._known.get(key) if key else {}

    def read(self, key: str) -> dict[str, str]:
        """Read the environment of a key. Only `Unavailable` is worth a retry."""
        content = self._content(key)
        try:
            environment = msgspec.json.decode(content, type=dict[str, str])
        except UNDECODABLE as error:
            raise Corrupt(
                f"the task's environment in {self._place(key)} is damaged: {error}",
                hint="submit the task again",
            ) from error
        self._known[key] = environment
        return environment

    def _content(self, key: str) -> bytes:
        # Non-blocking, so that a named pipe in the file's place does not block the thread.
        def opened(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NONBLOCK)

        try:
            with open(self._folder / key, "rb", opener=opened) as file:
                return file.read() or b""
        except FileNotFoundError:
            raise deleted() from None
        except OSError as error:
            kind = Corrupt if isinstance(error, LASTING) else Unavailable
            raise kind(
                f"the task's environment in {self._place(key)} cannot be read: {error.strerror}",
                hint="correct the file's type and permissions, or submit the task again",
            ) from error

    def _place(self, key: str) -> str:
        return str(self._folder / key)

    def forget(self, key: str) -> None:
        """Remove an environment from memory; it stays stored."""
        self._known.pop(key, None)

    def discard(self, key: str) -> None:
        """Delete an environment."""
        self.forget(key)
        if key:
            self._remove(key)

    def sweep(self, state: Cluster) -> None:
        """Delete the environments of tasks that have ended or are unknown."""
        needed = {task.spec.env_key for task in state.tasks.values() if not task.ended}
        for key in self._keys():
            if key not in needed:
                self._remove(key)

    def _keys(self) -> list[str]:
        try:
            names = [file.name for file in self._folder.iterdir()]
            return [name for name in names if KEY_FILE.fullmatch(name)]
        except OSError as error:
            log.warning(
                "old environments in %s could not be deleted: %s", self._folder, error.strerror
            )
            return []

    def _remove(self, key: str) -> None:
        file = self._folder / key
        try:
            with suppress(FileNotFoundError):
                file.unlink()
        except OSError as error:
            log.warning("the unused environment %s could not be deleted: %s", file, error)


class StoreVault(Vault):
    """Environments by key, in the store that several coordinators share."""

    def __init__(self, store: "PostgresStore") -> None:
        self._shared = store
        self._known = {}

    def _store(self, key: str, content: bytes) -> None:
        self._shared.keep_secret(PREFIX + key, content)

    def _content(self, key: str) -> bytes:
        content = self._shared.secret(PREFIX + key)
        if content is None:
            raise deleted()
        return content

    def _place(self, key: str) -> str:
        return f"row {PREFIX}{key} of the table `secrets`"

    def _keys(self) -> list[str]:
        names = self._shared.secrets()
        return [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]

    def _remove(self, key: str) -> None:
        try:
            self._shared.discard_secret(PREFIX + key)
        except StrataError as error:
            log.warning("an unused environment could not be deleted: %s", error)


def deleted() -> NotFound:
    """The error for an environment that is gone."""
    return NotFound("the task's environment was deleted", hint="submit the task again")


DELAYS_S = (0.1, 0.5, 2.0)
"""Delays between attempts to read a file after a temporary error."""

BEING_READ = "the task's environment is being read"


class Provided(NamedTuple):
    """An environment, or the reason why no worker can be started."""

    values: dict[str, str]
    blocked: str


class Fault(NamedTuple):
    """Why an environment could not be read, and the worker starts that needed it."""

    reason: str
    starts: dict[str, int]


class Environments:
    """The environments of running tasks. `tell` sends a task's agents their duties again."""

    def __init__(self, engine: Engine, vault: Vault, tell: Callable[[str], None]) -> None:
        self._engine = engine
        self._vault = vault
        self._tell = tell
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._faults: dict[str, Fault] = {}
        self._discarding: set[asyncio.Task[None]] = set()

    def of(self, task: Task) -> Provided:
        """The environment of a task; starts to read it if it is not in memory."""
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
            # The state that is sent to agents must be on disk.
            async with self._engine.settled():
                self._tell(task_id)

    async def _attempt(self, key: str) -> None:
        for delay_s in DELAYS_S:
            try:
                await asyncio.to_thread(self._vault.read, key)
                return
            except Unavailable as error:
                log.warning("reading the environment again in %g s: %s", delay_s, error)
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
            # Removed, so that the next message to an agent of the task tries again.
            self._faults.pop(task_id, None)
            log.error("task %s could not be marked as failed: %s", task_id, error, extra=about)
