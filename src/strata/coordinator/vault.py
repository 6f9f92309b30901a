"""Where the values of tasks' environments are kept: outside the log, which remembers for ever.

A fact names the variables and a key; the values lie in a file of that name which only the
coordinator's user can read. Files that no task needs any more are removed.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from strata.core.state import Cluster
from strata.errors import NotFound


class Vault:
    """Environments by key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def keep(self, environment: Mapping[str, str]) -> str:
        """Stores an environment and gives its key; an empty one needs none."""
        if not environment:
            return ""
        key = secrets.token_hex(16)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(self._folder / key, flags, 0o600), "wb") as file:
            file.write(msgspec.json.encode(dict(environment)))
            file.flush()
            os.fsync(file.fileno())
        return key

    def get(self, key: str) -> dict[str, str]:
        """The environment of that key."""
        if not key:
            return {}
        try:
            return msgspec.json.decode((self._folder / key).read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            raise NotFound(
                "the task's environment is no longer kept", hint="submit the task again"
            ) from None

    def sweep(self, state: Cluster) -> None:
        """Removes what no unended task refers to."""
        needed = {task.spec.env_key for task in state.tasks.values() if not task.ended}
        for file in self._folder.iterdir():
            if file.name not in needed:
                file.unlink()
