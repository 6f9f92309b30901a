"""An exported run: exactly the events that were exported, or an error that names the file.

The first byte says which file of the run the rest replaces.
"""

import tempfile
from functools import cache
from pathlib import Path

from strata.store.event_store import Found
from strata.store.sqlite import SqliteStore
from strata.timeline.archive.parquet_log import EVENTS, FACTS, ParquetLog
from strata.timeline.archive.run_file import RUN
from strata.timeline.archive.segmented_log import open_log
from strata.timeline.export.event_files import write_parquet
from strata.timeline.read.run_timeline import Timeline
from tests.core.scenario import every_kind
from tests.fuzz.fuzz_events import CODEC, COUNT
from tests.fuzz.fuzz_events import EVENTS as SENT
from tests.fuzz.targets import refused_naming

FILES = (RUN, FACTS, EVENTS)


@cache
def _exported() -> tuple[dict[str, bytes], list[Found]]:
    """The files of a run, and its events."""
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as made:
        folder = Path(made)
        facts = every_kind().log[:60]
        with SqliteStore(folder / "log.db", CODEC) as store:
            store.append(facts, incarnation=1, expected=0, batches=[_batch()])
        with open_log(folder / "log.db") as log:
            write_parquet(Timeline(log, "run"), folder / "run")
        with ParquetLog(folder / "run") as exported:
            found = list(exported.query())
        return {name: (folder / "run" / name).read_bytes() for name in FILES}, found


def _batch():
    from strata.store.event_batches import pack

    return pack(CODEC, "w", 1, SENT[:COUNT])


def seeds() -> list[bytes]:
    files, _ = _exported()
    return [bytes([number]) + files[name] for number, name in enumerate(FILES)]


def check(data: bytes) -> None:
    files, expected = _exported()
    chosen = FILES[data[0] % len(FILES)] if data else RUN
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as made:
        folder = Path(made)
        for name, content in (files | {chosen: data[1:]}).items():
            (folder / name).write_bytes(content)
        with refused_naming(str(folder)), ParquetLog(folder) as log:
            found = list(log.query())
            if chosen != RUN:
                assert all(each in expected for each in found), "an event that was not exported"
            list(log.read(log.first))
            for node, incarnation in log.streams():
                list(log.stream(node, incarnation))
                log.gaps(node, incarnation)
            log.tallies()
            list(log.headers())
            list(log.batches())
            log.position_at(7)
        with refused_naming(str(folder)), ParquetLog(folder) as log:
            log.check(lambda damage: None)
