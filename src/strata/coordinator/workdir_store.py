"""The folders of tasks on the coordinator: taken from submitters, given to agents.

A submitter announces the list of files and sends the pieces that are missing, so unchanged files
are not sent again. Folders are bounded in size, each and together. A folder that no task names, and
that was not used for `UNUSED_S`, is deleted when the coordinator starts and when a folder is
announced; until then a submitter has time to send it and to submit the task.

Methods access files and are called in threads.
"""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from strata.config import Settings
from strata.core.state import Cluster
from strata.core.tasks.workdirs import Workdir, check_workdir
from strata.errors import InvalidArgument, LimitExceeded, NotFound
from strata.workdir.piece_store import PieceStore

log = logging.getLogger(__name__)

UNUSED_S = 3_600.0


class Workdirs:
    """The stored folders."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.store = PieceStore(folder)
        self._max_bytes = settings.max_workdir_bytes
        self._total_bytes = settings.workdirs_bytes

    def announce(self, workdir: Workdir, needed: Collection[str]) -> list[str]:
        """Accept the list of files of a folder; returns the pieces that are missing."""
        check_workdir(workdir, self._max_bytes)
        self.sweep(needed)
        missing, sizes = self.store.missing(workdir), workdir.pieces
        stored, added = self.store.size_bytes, sum(sizes[piece] for piece in missing)
        if stored + added > self._total_bytes:
            raise self._too_large(stored, added)
        self.store.put_list(workdir)
        return missing

    def add(self, digest: str, pieces: Sequence[bytes]) -> int:
        """Store pieces of an announced folder; returns their number."""
        known = self.store.workdir(digest).pieces
        present, added = self.store.size_bytes, sum(map(len, pieces))
        if present + added > self._total_bytes:
            raise self._too_large(present, added)
        for content in pieces:
            stored = self.store.digest(content)
            if known.get(stored) != len(content):
                raise InvalidArgument(
                    f"a piece of {len(content)} bytes is not of folder {digest}: {stored}",
                    hint="a file has changed while it was sent: submit again",
                )
            self.store.put(content)
        return len(pieces)

    def _too_large(self, stored: int, added: int) -> LimitExceeded:
        return LimitExceeded(
            f"the folders of tasks have {stored:,} bytes here, and this one needs {added:,} "
            f"more; workdirs_bytes is {self._total_bytes:,}",
            hint="raise workdirs_bytes of the coordinator, or submit a smaller folder",
        )

    def complete(self, digest: str) -> Workdir:
        """The files of a folder; raises unless all of them are here."""
        workdir = self.store.workdir(digest)
        if missing := self.store.missing(workdir):
            lost = next(
                file.path for file in workdir.files if not set(missing).isdisjoint(file.stored_as)
            )
            raise NotFound(
                f"folder {digest} is not complete on the coordinator: {lost} is missing",
                hint="send the folder again with --workdir",
            )
        return workdir

    def sweep(self, needed: Collection[str]) -> None:
        """Delete folders that no task needs."""
        self.store.sweep(needed, UNUSED_S)


def swept(workdirs: Workdirs, state: Cluster) -> Workdirs:
    """The stored folders without those that no task needs."""
    workdirs.sweep(needed_by(state))
    return workdirs


def needed_by(state: Cluster) -> set[str]:
    """The digests of the folders of all tasks, ended ones too, because they can be continued."""
    return {task.spec.workdir for task in state.tasks.values() if task.spec.workdir}
