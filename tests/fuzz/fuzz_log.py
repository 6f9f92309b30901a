"""The file of a log in SQLite: exactly the facts that were stored, or `Corrupt` with its name.

Read are facts, batches and snapshots; the check of the whole file and the salvage run too.
"""

import shutil
import tempfile
from functools import cache
from pathlib import Path

from strata.store.event_store import Snapshot
from strata.store.sqlite import SqliteReader, SqliteStore
from tests.fuzz.targets import refused_naming
from tests.store.kinds import CODEC, event, fill

ROWS, FACTS = 6, 5


@cache
def _stored() -> tuple[bytes, ...]:
    folder = Path(tempfile.mkdtemp(prefix="strata-fuzz-"))
    with SqliteStore(folder / "log.db", CODEC) as store:
        fill(store, ROWS, FACTS)
        store.save_snapshot(Snapshot(10, 10_000, "s", b"state"))
    content = (folder / "log.db").read_bytes()
    shutil.rmtree(folder)
    return (content,)


def seeds() -> list[bytes]:
    return list(_stored())


def check(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as folder:
        path = Path(folder, "log.db")
        path.write_bytes(data)
        with refused_naming("log.db"), SqliteReader(path, CODEC) as reader:
            _read(reader)
        path.write_bytes(data)
        with refused_naming("log.db"), SqliteStore(path, CODEC) as store:
            position = store.position
            store.append([event(position)], incarnation=1, expected=position)


def _read(reader: SqliteReader) -> None:
    for read in (_facts, _batches, _snapshot):
        with refused_naming():
            read(reader)
    reader.check(lambda damage: None)


def _facts(reader: SqliteReader) -> None:
    for fact in reader.read():
        assert fact == event(fact.seq), "a fact that was not stored"


def _batches(reader: SqliteReader) -> None:
    for node, _, found in reader.query():
        if node == "w0":
            assert found == event(found.seq, 1_000 * found.seq + 500), "an event that was not sent"


def _snapshot(reader: SqliteReader) -> None:
    snapshot = reader.load_snapshot(None, "s")
    assert snapshot is None or snapshot.state == b"state", "a snapshot that was not saved"
