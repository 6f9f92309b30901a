"""The store of a coordinator, and the secrets beside it.

A store in the data folder belongs to the coordinators of that folder. A PostgreSQL store may be
shared by coordinators on several machines. The one that leads writes the store; the others read it
and wait to take over. What a new leader needs besides the facts, the environments of tasks and the
secret of peer tokens, is in the same place.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from strata.config import Settings
from strata.coordinator.sessions.standing_messages import PeerTokens, new_secret, secret_in
from strata.coordinator.sessions.task_environments import StoreVault, Vault
from strata.core.cluster import CODEC
from strata.errors import SettingError
from strata.store.sql.sql_reader import SqlReader
from strata.store.sql.sql_store import SqlStore
from strata.store.sqlite import SqliteReader, SqliteStore
from strata.store.sqlite.lock_files import lock_holder
from strata.timeline.archive.moved_facts import fetching
from strata.timeline.archive.segmented_log import LOG

PEERS = "peers"
"""The name of the secret of peer tokens."""


class OwnStore(Struct, frozen=True):
    """A store open for writing, with the secrets beside it."""

    store: SqlStore
    vault: Vault
    tokens: PeerTokens


@contextmanager
def open_store(settings: Settings) -> Iterator[OwnStore]:
    """Open the store as its leader; raises `NotLeading` or `Conflict` while another one leads."""
    folder, encrypted = data_folder(settings), bool(settings.tls_cert)
    if not settings.store:
        with SqliteStore(folder / LOG, CODEC, fetching(settings)) as store:
            tokens = PeerTokens(secret_in(folder / "peers.secret"), encrypted=encrypted)
            yield OwnStore(store, Vault(folder / "vault"), tokens)
        return
    # Imported here: only a shared store needs PostgreSQL's client.
    from strata.store.postgres import PostgresStore

    name = f"{socket.gethostname()}:{settings.grpc_port} (process {os.getpid()})"
    with PostgresStore(
        settings.store, CODEC, fetching(settings), holder=name, lease_s=settings.lease_s
    ) as shared:
        shared.keep_secret(PEERS, new_secret())
        tokens = PeerTokens(shared.secret(PEERS) or b"", encrypted=encrypted)
        yield OwnStore(shared, StoreVault(shared), tokens)


class WatchedStore(Protocol):
    """A store that another coordinator writes."""

    reader: SqlReader

    def leader(self) -> str:
        """Who leads; empty if there is no leader."""


class FileStore:
    """A store in a data folder, whose leader holds a lock."""

    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.data_dir) / LOG
        self.reader: SqlReader = SqliteReader(self._path, CODEC, fetch=fetching(settings))

    def leader(self) -> str:
        holder = lock_holder(self._path)
        return f"process {holder}" if holder else ""


class SharedStore:
    """A PostgreSQL store."""

    def __init__(self, settings: Settings) -> None:
        # Imported here: only a shared store needs PostgreSQL's client.
        from strata.store.postgres import PostgresReader

        self._shared = PostgresReader(settings.store, CODEC, fetch=fetching(settings))
        self.reader: SqlReader = self._shared

    def leader(self) -> str:
        return "" if self._shared.is_vacant() else self._shared.leader().holder


def watch_store(settings: Settings) -> WatchedStore:
    """Open the store for a standby."""
    return SharedStore(settings) if settings.store else FileStore(settings)


def data_folder(settings: Settings) -> Path:
    """The data folder, created if missing."""
    folder = Path(settings.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"the data folder {folder} cannot be used: {error.strerror}",
            hint="choose another folder with --data-dir, or correct its permissions",
        ) from error
    return folder
