"""The values of tasks' environments: kept outside the log, which is never rewritten.

A fact names the variables and a key; the values lie in a file of that name which only the
coordinator's user can read. They stay in memory too, so that the file of a task is read once after
a restart, however many agents run its workers. File access is for threads; `known` is for the event
loop. Files that no task needs any more are removed.
"""

import logging
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from strata.core.state import Cluster
from strata.errors import Corrupt, NotFound, Unavailable
from strata.files import write_whole

log = logging.getLogger(__name__)

LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of a read that a second attempt does not mend."""


class Vault:
    """Environments by key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[str, str]] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"the folder {folder} for tasks' environments cannot be made: {error.strerror}",
                hint="make the data folder writable for the coordinator's user",
            ) from error

    def keep(self, environment: Mapping[str, str]) -> str:
        """Store an environment and return its key; an empty one has the key ''."""
        if not environment:
            return ""
        key = secrets.token_hex(16)
        try:
            write_whole(self._folder / key, msgspec.json.encode(dict(environment)))
        except OSError as error:
            raise Unavailable(
                f"the task's environment cannot be stored: {error.strerror}",
                hint=f"make room in {self._folder}, or make it writable, and submit again",
            ) from error
        self._known[key] = dict(environment)
        return key

    def known(self, key: str) -> dict[str, str] | None:
        """The environment of a key if it is in memory; reads no file."""
        return self._known.get(key) if key else {}

    def read(self, key: str) -> dict[str, str]:
        """The environment of a key, from its file. A second attempt may mend `Unavailable` only."""
        try:
            content = self._content(key)
            environment = msgspec.json.decode(content, type=dict[str, str])
        except FileNotFoundError:
            raise NotFound(
                "the task's environment is no longer kept", hint="submit the task again"
            ) from None
        except OSError as error:
            kind = Corrupt if isinstance(error, LASTING) else Unavailable
            raise kind(
                f"the task's environment in {self._folder / key} cannot be read: {error.strerror}",
                hint="mend the file's type and permissions, or submit the task again",
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(
                f"the task's environment in {self._folder / key} is damaged: {error}",
                hint="submit the task again",
            ) from error
        self._known[key] = environment
        return environment

    def _content(self, key: str) -> bytes:
        # Not blocking: a named pipe in the file's place must not hold the thread for ever.
        def opened(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NONBLOCK)

        with open(self._folder / key, "rb", opener=opened) as file:
            return file.read() or b""

    def forget(self, key: str) -> None:
        """Drop an environment from memory; its file stays."""
        self._known.pop(key, None)

    def discard(self, key: str) -> None:
        """Delete an environment that no task needs any more."""
        self.forget(key)
        if key:
            self._remove(self._folder / key)

    def sweep(self, state: Cluster) -> None:
        """Delete the environments of tasks that have ended or are unknown."""
        needed = {task.spec.env_key for task in state.tasks.values() if not task.ended}
        try:
            files = list(self._folder.iterdir())
        except OSError as error:
            log.warning("old environments in %s stay: %s", self._folder, error.strerror)
            return
        for file in files:
            if file.name not in needed:
                self._remove(file)

    @staticmethod
    def _remove(file: Path) -> None:
        try:
            with suppress(FileNotFoundError):
                file.unlink()
        except OSError as error:
            log.warning("%s holds an environment that is not needed, and stays: %s", file, error)
