"""SQL over a run, with DuckDB.

Tables: `events` (one row per fact or event), and derived from it `operations`, `steps`, `workers`,
`samples` and `activity` (the workers' time, as in the lanes).

The rows of a live log are cached in a DuckDB file beside it, because decoding takes much longer
than a query (about 5 µs per row, against milliseconds per million rows); each call adds new rows.
An exported run is read from its Parquet files.

Only a single query is allowed, no other statement. The database is read-only, without access to
files or the network, and with bounded memory; larger results spill to a temporary folder, which is
deleted after the query.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from msgspec import Struct

from strata.core.events import COORDINATOR
from strata.errors import InvalidArgument
from strata.timeline.archive.event_columns import ROWS, SCHEMA, tables
from strata.timeline.archive.parquet_log import ParquetLog
from strata.timeline.lanes.worker_time import all_activities
from strata.timeline.read.run_timeline import Timeline

CACHE = "timeline-v1.duckdb"
Config: TypeAlias = dict[str, str | bool | int | float | list[str]]
BOUNDS: Config = {"memory_limit": "512MB", "threads": 2, "python_enable_replacements": False}
EXPLAIN = re.compile(r"^\s*explain\s*(analyze\b|\([^)]*\))?", re.IGNORECASE)

VIEWS = {
    "operations": """
        SELECT s.node, s.incarnation, s.name, s.key, s.time AS started_at, e.time AS ended_at,
            (e.mono_ns - s.mono_ns) / 1e9 AS seconds, json_extract(e.body, '$.ok')::BOOLEAN AS ok,
            json_extract_string(e.body, '$.error') AS error
        FROM (
            SELECT *, regexp_replace(kind, '(Started|Submitted)$', '') AS name,
                coalesce(nullif(op, ''), batch, checkpoint, '') AS key
            FROM events WHERE regexp_matches(kind, '(Started|Submitted)$')
                AND position IS NULL AND kind <> 'RunStarted'
        ) AS s ASOF LEFT JOIN (
            SELECT *, regexp_replace(kind, '(Completed|Finished)$', '') AS name,
                coalesce(nullif(op, ''), batch, checkpoint, '') AS key
            FROM events WHERE regexp_matches(kind, '(Completed|Finished)$') AND position IS NULL
        ) AS e ON s.node = e.node AND s.incarnation = e.incarnation AND s.name = e.name
            AND s.key = e.key AND s.seq <= e.seq""",
    "steps": """
        SELECT time, node, incarnation, step, epoch,
            json_extract(body, '$.data_s')::DOUBLE AS data_s,
            json_extract(body, '$.compute_s')::DOUBLE AS compute_s,
            json_extract(body, '$.communication_s')::DOUBLE AS communication_s,
            json_extract(body, '$.wait_s')::DOUBLE AS wait_s,
            json_extract(body, '$.loss')::DOUBLE AS loss
        FROM events WHERE kind = 'StepFinished'""",
    "workers": """
        SELECT r.worker, json_extract(r.body, '$.incarnation')::BIGINT AS incarnation, r.task,
            json_extract_string(r.body, '$.hostname') AS hostname, r.time AS joined_at,
            l.time AS ended_at, l.kind AS ended_by,
            json_extract_string(l.body, '$.signal') AS signal,
            json_extract_string(l.body, '$.reason') AS reason
        FROM events AS r LEFT JOIN events AS l ON l.position IS NOT NULL
            AND l.worker = r.worker
            AND (l.kind = 'WorkerLost' OR (l.kind = 'WorkerStateChanged'
                AND json_extract_string(l.body, '$.after') = 'left'))
            AND json_extract(l.body, '$.incarnation') = json_extract(r.body, '$.incarnation')
        WHERE r.kind = 'WorkerRegistered'""",
    "samples": """
        WITH commits AS (
            SELECT position, time, task, json_extract(body, '$.first')::BIGINT AS first,
                json_extract(body, '$.last')::BIGINT AS last,
                json_extract(body, '$.attempt')::BIGINT AS attempt,
                json_extract(body, '$.generation')::BIGINT AS generation
            FROM events WHERE kind = 'StepsCommitted'
        ), feeds AS (
            SELECT task, json_extract_string(body, '$.dataset') AS dataset,
                json_extract(body, '$.global_batch')::BIGINT AS global_batch
            FROM events WHERE kind = 'DatasetAttached'
        ), rollbacks AS (
            SELECT task, position, json_extract(body, '$.to')::BIGINT AS step
            FROM events WHERE kind = 'RolledBack'
        ), loops AS (
            SELECT task, position, json_extract_string(body, '$.dataset') AS dataset,
                json_extract(body, '$.start')::BIGINT AS start,
                json_extract(body, '$.first')::BIGINT AS first,
                json_extract(body, '$.steps')::BIGINT AS steps
            FROM events WHERE kind = 'LoopOpened'
        ), open AS (
            SELECT c.position AS at, l.*, min(l.start) OVER (PARTITION BY c.position
                ORDER BY l.start RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS next
            FROM commits AS c JOIN loops AS l ON l.task = c.task AND l.position < c.position
                AND NOT EXISTS (SELECT 1 FROM rollbacks AS b WHERE b.task = l.task
                    AND b.position > l.position AND b.position < c.position AND b.step < l.start)
            QUALIFY row_number() OVER (
                PARTITION BY c.position, l.dataset, l.start ORDER BY l.position DESC) = 1
        ), parts AS (
            SELECT c.*, a.dataset, a.global_batch, greatest(c.first, coalesce(l.start, 0)) AS begin,
                least(c.last, coalesce(l.start + l.steps - 1, c.last),
                    coalesce(l.next - 1, c.last)) AS finish,
                coalesce(l.first - l.start, 0) AS shift
            FROM commits AS c JOIN feeds AS a USING (task)
                LEFT JOIN open AS l ON l.at = c.position AND l.dataset = a.dataset
            WHERE l.at IS NOT NULL OR c.task NOT IN (SELECT task FROM loops)
        ), cuts AS (
            SELECT p.*, coalesce((SELECT min(b.step) FROM rollbacks AS b WHERE b.task = p.task
                AND b.position > p.position), finish + 1) AS cut
            FROM parts AS p WHERE begin <= finish
        ), pieces AS (
            SELECT *, begin AS low, least(finish, cut - 1) AS high, false AS voided FROM cuts
            UNION ALL
            SELECT *, greatest(begin, cut) AS low, finish AS high, true AS voided FROM cuts
        )
        SELECT task, dataset, attempt, generation, low AS first_step, high AS last_step,
            (low + shift) * global_batch AS first_sample,
            (high + 1 + shift) * global_batch AS stop_sample, time AS committed_at, voided
        FROM pieces WHERE low <= high""",
}


ACTIVITY = "activity"
ACTIVITY_COLUMNS = pa.schema(
    [
        ("node", pa.string()),
        ("task", pa.string()),
        ("started_at", pa.timestamp("ns")),
        ("ended_at", pa.timestamp("ns")),
        ("seconds", pa.float64()),
        ("kind", pa.string()),
        ("part", pa.string()),
        ("step", pa.int64()),
        ("what", pa.string()),
    ]
)
HINT = f"the tables are events, {', '.join(VIEWS)}, {ACTIVITY}; DESCRIBE events lists columns"


class QueryResult(Struct, frozen=True):
    """The rows of a query; `more` if there are further rows beyond the limit."""

    columns: list[str]
    rows: list[tuple[object, ...]]
    more: bool


def query(timeline: Timeline, text: str, limit: int = 1_000) -> QueryResult:
    """Run a query and return at most `limit` rows."""
    with connected(timeline, text) as db:
        try:
            _require_query(db, text)
            cursor = db.execute(text)
            rows = cursor.fetchmany(limit + 1)
        except duckdb.Error as error:
            raise InvalidArgument(f"the query failed: {error}", hint=HINT) from error
        columns = _unique([column[0] for column in cursor.description or []])
        return QueryResult(columns, rows[:limit], len(rows) > limit)


def _require_query(db: duckdb.DuckDBPyConnection, text: str) -> None:
    """Raise unless the text is one query: DuckDB would also run statements that write or attach."""
    kinds = [statement.type for statement in db.extract_statements(text)]
    if kinds == [duckdb.StatementType.EXPLAIN]:
        explained = EXPLAIN.sub("", text, count=1)
        kinds = [statement.type for statement in db.extract_statements(explained)]
    if kinds != [duckdb.StatementType.SELECT]:
        named = ", ".join(kind.name for kind in kinds) or "nothing"
        raise InvalidArgument(
            f"only a single query is allowed, but this is {named}",
            hint="write one SELECT; to write a file, redirect the output of `strata sql --json`",
        )


def _unique(columns: list[str]) -> list[str]:
    """Column names; repeated ones get a number that makes them unique."""
    found: list[str] = []
    taken = set(columns)
    for name in columns:
        given, number = name, 0
        while given in found or (number and given in taken):
            number += 1
            given = f"{name}_{number}"
        found.append(given)
    return found


@contextmanager
def connected(timeline: Timeline, text: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with access to the tables only.

    DuckDB opens no files but its cache, read-only, and those that it spills to.
    """
    with tempfile.TemporaryDirectory(prefix="strata-sql-") as scratch:
        bounds: Config = BOUNDS | {"temp_directory": str(Path(scratch) / "spill")}
        if isinstance(timeline.reader, ParquetLog):
            db = duckdb.connect(config=bounds)
            _add_parquet(db, timeline.reader)
        else:
            path = _decoded(timeline, Path(scratch))
            db = duckdb.connect(str(path), read_only=True, config=bounds)
        try:
            for name, made_of in VIEWS.items():
                db.execute(f"CREATE TEMP VIEW {name} AS {made_of}")
            if ACTIVITY in text.lower():
                db.register(ACTIVITY, _activity(timeline, Path(scratch) / "activity.parquet"))
            else:  # for SHOW TABLES alone: a query that reads it names it
                db.register(ACTIVITY, ACTIVITY_COLUMNS.empty_table())
            db.execute("SET enable_external_access = false; SET lock_configuration = true")
            yield db
        finally:
            db.close()


def _add_parquet(db: duckdb.DuckDBPyConnection, log: ParquetLog) -> None:
    """Add the table `events` of an exported run.

    Arrow reads the files: to read them itself, DuckDB would need permission to write files, too.
    """
    names = ", ".join(name for name in SCHEMA.names if name != "at_ns")
    for table, rows in (("facts", log.facts), ("others", log.events)):
        db.register(table, rows)
    db.execute(
        f"CREATE TEMP VIEW events AS SELECT make_timestamp_ns(at_ns) AS time, {names} FROM "
        "(SELECT * FROM facts UNION ALL SELECT * FROM others)"
    )


def _activity(timeline: Timeline, path: Path) -> ds.Dataset:
    """The workers' activities as rows; computed for each query that uses them."""
    with pq.ParquetWriter(path, ACTIVITY_COLUMNS) as writer:
        found = all_activities(timeline)
        while chunk := list(islice(found, ROWS)):
            rows = [
                {
                    "node": node,
                    "task": each.task,
                    "started_at": each.from_ns,
                    "ended_at": each.to_ns,
                    "seconds": (each.to_ns - each.from_ns) / 1e9,
                    "kind": each.kind,
                    "part": each.part or None,
                    "step": each.step if each.step >= 0 else None,
                    "what": each.label,
                }
                for node, each in chunk
            ]
            writer.write_table(pa.Table.from_pylist(rows, ACTIVITY_COLUMNS))
    return ds.dataset(path, format="parquet")


def _decoded(timeline: Timeline, scratch: Path) -> Path:
    """Update the cache file beside the log, and return its path.

    If that cannot be written, or another process uses it, the log is decoded into `scratch`.
    """
    path = _cache_path(timeline) or scratch / CACHE
    try:
        db = duckdb.connect(str(path), config=BOUNDS)
    except duckdb.IOException:
        path = scratch / CACHE
        db = duckdb.connect(str(path), config=BOUNDS)
    try:
        _bring_up_to_date(db, timeline)
    finally:
        db.close()
    return path


def _bring_up_to_date(db: duckdb.DuckDBPyConnection, timeline: Timeline) -> None:
    if not _fits(db, timeline):
        db.execute("DROP TABLE events")
    db.execute(
        "CREATE TABLE IF NOT EXISTS events (time TIMESTAMP_NS, node VARCHAR, incarnation BIGINT, "
        "seq BIGINT, position BIGINT, wall_ns BIGINT, mono_ns BIGINT, kind VARCHAR, "
        "version INTEGER, op VARCHAR, cause VARCHAR[], task VARCHAR, worker VARCHAR, step BIGINT, "
        "epoch BIGINT, batch VARCHAR, shard VARCHAR, checkpoint VARCHAR, barrier VARCHAR, "
        "blob VARCHAR, message VARCHAR, request VARCHAR, body VARCHAR)"
    )
    with _one_transaction(db):
        _add_new(db, timeline)


def _cache_path(timeline: Timeline) -> Path | None:
    """The path of the cache beside the log; None if that folder is not writable."""
    log = getattr(timeline.reader, "path", None)
    if log is None or not os.access(Path(log).parent, os.W_OK):
        return None
    return Path(log).parent / CACHE


def _fits(db: duckdb.DuckDBPyConnection, timeline: Timeline) -> bool:
    """Whether the cached rows are of this log, by the time of the newest cached fact."""
    if "events" not in [name for (name,) in db.execute("SHOW TABLES").fetchall()]:
        return True
    newest = _last_position(db)
    if newest is None:
        return True
    if newest >= timeline.position:
        return False
    rows = db.execute("SELECT wall_ns FROM events WHERE position = $1", [newest]).fetchall()
    return bool(rows[0][0] == next(timeline.facts(newest, newest + 1)).event.wall_ns)


@contextmanager
def _one_transaction(db: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """One transaction: all or nothing, and a single write to disk."""
    db.begin()
    try:
        yield
    except BaseException:
        db.rollback()
        raise
    db.commit()


def _add_new(db: duckdb.DuckDBPyConnection, timeline: Timeline) -> None:
    newest = _last_position(db)
    start = timeline.extent().first if newest is None else newest + 1
    _insert(db, tables(timeline.facts(start, timeline.position), exact=False))
    counted = "SELECT node, incarnation, max(seq) + 1 FROM events WHERE node <> $1 GROUP BY ALL"
    rows = db.execute(counted, [COORDINATOR]).fetchall()
    known = {(node, incarnation): stop for node, incarnation, stop in rows}
    for tally in timeline.tallies():
        stream = (tally.node, tally.incarnation)
        last = timeline.reader.last_seq(*stream)
        if last is not None and known.get(stream, 0) <= last:
            records = timeline.events_of(*stream, known.get(stream, 0))
            _insert(db, tables(records, exact=False))


def _last_position(db: duckdb.DuckDBPyConnection) -> int | None:
    rows = db.execute("SELECT max(position) FROM events").fetchall()
    newest: int | None = rows[0][0]
    return newest


def _insert(db: duckdb.DuckDBPyConnection, pieces: Iterator[pa.Table]) -> None:
    names = ", ".join(name for name in SCHEMA.names if name != "at_ns")
    for piece in pieces:
        db.register("piece", piece)
        db.execute(f"INSERT INTO events SELECT make_timestamp_ns(at_ns), {names} FROM piece")
        db.unregister("piece")
