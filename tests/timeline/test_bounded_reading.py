"""Guards that archives and traces are read and written in pieces, whatever the clocks did."""

import json
from itertools import islice

import pytest
from msgspec.structs import replace

from strata.core.events import COORDINATOR
from strata.store.event_store import Window
from strata.timeline.archive import event_columns, parquet_log
from strata.timeline.archive.event_columns import tables
from strata.timeline.archive.parquet_log import EVENTS, FACTS, ParquetLog
from strata.timeline.export import perfetto
from strata.timeline.export.event_files import write_file, write_parquet

ROWS = 64
HOUR_NS = 3_600 * 10**9
EVERYTHING = 2**62


@pytest.fixture
def kept(crashed, tmp_path, monkeypatch):
    """An archive with many small row groups."""
    monkeypatch.setattr(event_columns, "ROWS", ROWS)
    monkeypatch.setattr(parquet_log, "PIECE", 100)
    write_parquet(crashed.timeline, tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture
def decoded(monkeypatch):
    """The number of rows that were decoded so far."""
    count = [0]

    def counting(rows, codec):
        count[0] += rows.num_rows
        return event_columns.events_of(rows, codec)

    monkeypatch.setattr(parquet_log, "events_of", counting)
    return count


def set_back(record, from_seq: int):
    """The record as if the wall clock had been set back by an hour before it."""
    if record.event.seq < from_seq:
        return record
    return replace(record, event=replace(record.event, wall_ns=record.event.wall_ns - HOUR_NS))


def test_first_facts_of_an_archive_are_read_without_the_others(kept, decoded):
    log = ParquetLog(kept)
    assert log.position > 4 * ROWS
    found = list(islice(log.query(Window(node=COORDINATOR), EVERYTHING), 10))
    assert [event.seq for _, _, event in found] == list(range(10))
    assert decoded[0] <= 2 * ROWS


def test_facts_are_in_the_order_of_their_wall_clock_after_it_was_set_back(crashed, kept, decoded):
    facts = [set_back(each, 3 * ROWS + 7) for each in crashed.timeline.facts()]
    write_file(kept / FACTS, tables(facts, exact=True))
    log = ParquetLog(kept)
    found = log.query(Window(node=COORDINATOR), EVERYTHING)
    first = next(found)
    assert decoded[0] <= 3 * ROWS
    walls = [first[2].wall_ns, *(event.wall_ns for _, _, event in found)]
    assert walls == sorted(each.event.wall_ns for each in facts)


def test_sorted_events_of_a_worker_are_read_without_sorting(crashed, kept, decoded):
    log = ParquetLog(kept)
    node, incarnation = log.streams()[0]
    next(log.stream(node, incarnation))
    assert decoded[0] <= 2 * ROWS


def test_events_of_a_worker_are_in_the_order_of_seq_after_its_clock_was_set_back(crashed, kept):
    log = ParquetLog(kept)
    node, incarnation = log.streams()[0]
    own = list(crashed.timeline.events_of(node, incarnation))
    assert len(own) > 300
    jumped = sorted((set_back(each, 150) for each in own), key=lambda each: each.event.wall_ns)
    write_file(kept / EVENTS, tables(jumped, exact=True))
    found = [event.seq for event in ParquetLog(kept).stream(node, incarnation)]
    assert found == [each.event.seq for each in own]
    part = [event.seq for event in ParquetLog(kept).stream(node, incarnation, 120, 260)]
    assert part == [seq for seq in found if 120 <= seq < 260]


def test_trace_remembers_few_sends_and_draws_every_message(crashed, monkeypatch):
    def arrows():
        trace = json.loads(b"".join(crashed.queries.export("perfetto", None, None)))
        return [
            (event["ph"], event["pid"], event["ts"])
            for event in trace["traceEvents"]
            if event["name"] == "message" and event["ph"] in "sf"
        ]

    whole = arrows()
    assert whole
    monkeypatch.setattr(perfetto, "MAX_SENT", 1)
    assert arrows() == whole
