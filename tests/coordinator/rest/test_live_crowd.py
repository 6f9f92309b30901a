"""The live view of a large cluster: a connected reader gets only changes, in pieces; a new or
reconnected reader gets the full state."""

import json
import time

import pytest

from strata.coordinator.rest.views.live_history import PIECE_ROWS, PatchHistory
from strata.coordinator.sessions.last_heartbeats import LastHeartbeat
from tests.coordinator.rest.served import Coordinator
from tests.coordinator.rest.test_stream import Reader, stream

WORKERS = 10_000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    with Coordinator(tmp_path_factory.mktemp("crowd"), memory=True) as coordinator:
        workers = coordinator.train(WORKERS, shards=10)
        with coordinator.client() as client:
            yield coordinator, client, workers


def all_beat(coordinator, workers, step: int) -> None:
    async def beat() -> None:
        now_ms = time.time_ns() // 1_000_000
        for worker in workers:
            coordinator.heartbeats.note(
                worker.id, LastHeartbeat(worker.incarnation, now_ms, step=step)
            )

    coordinator.run(beat())


def patches(answer):
    for event in Reader(answer).events():
        assert len(event["data"]) < 2**20, "a piece is small"
        patch = json.loads(event["data"])
        assert patch["mark"] == event["id"]
        yield patch


def read_whole(found, rows: dict) -> str:
    """Read the full state into the rows; returns the mark to continue from."""
    patch = next(found)
    assert patch["reset"]
    while not patch["mark"]:
        rows |= {row["id"]: row for row in patch.get("workers", ())}
        patch = next(found)
        assert "reset" not in patch
    rows |= {row["id"]: row for row in patch.get("workers", ())}
    return patch["mark"]


def read_until(found, rows: dict, step: int) -> int:
    """Read patches until every row has the step; returns their number."""
    for count, patch in enumerate(found, 1):
        assert "reset" not in patch
        rows |= {row["id"]: row for row in patch.get("workers", ())}
        if {row["current_step"] for row in rows.values()} == {step}:
            return count
    raise AssertionError("the stream ended")


def test_reader_gets_the_full_state_in_pieces_then_changes(crowd):
    coordinator, client, workers = crowd
    with stream(client, "/api/live") as answer:
        found, rows = patches(answer), {}
        read_whole(found, rows)
        assert len(rows) == WORKERS
        for step in (1, 2, 3):
            all_beat(coordinator, workers, step)
            assert read_until(found, rows, step) >= WORKERS // PIECE_ROWS


def test_disconnected_reader_resumes_after_all_rows_changed(crowd):
    coordinator, client, workers = crowd
    with stream(client, "/api/live") as other:  # keeps the updates running
        others, rows = patches(other), {}
        mark = read_whole(others, rows)
        all_beat(coordinator, workers, 11)
        read_until(others, rows, 11)
        resumed: dict = {}
        with stream(client, "/api/live", headers={"Last-Event-ID": mark}) as answer:
            for patch in patches(answer):
                assert "reset" not in patch
                resumed |= {row["id"]: row for row in patch.get("workers", ())}
                if len(resumed) == WORKERS:
                    break
    assert {row["current_step"] for row in resumed.values()} == {11}


def test_reader_disconnected_in_the_first_pieces_gets_the_full_state(crowd):
    _, client, _ = crowd
    with stream(client, "/api/live") as answer:
        first = next(patches(answer))
    assert first["reset"]
    assert first["mark"] == ""
    with stream(client, "/api/live", headers={"Last-Event-ID": first["mark"]}) as answer:
        rows: dict = {}
        read_whole(patches(answer), rows)
    assert len(rows) == WORKERS


def test_last_patches_are_kept_whatever_their_size():
    history = PatchHistory(max_patches=4, max_bytes=100)
    history.keep([b"a" * 90])
    assert history.after(0) == [b"a" * 90]
    history.keep([b"b" * 80, b"c" * 80, b"d" * 80])
    assert history.after(1) == [b"b" * 80, b"c" * 80, b"d" * 80]
    assert history.after(2) == [b"c" * 80, b"d" * 80]
    assert history.after(0) is None
    history.keep([b"e"])
    assert history.number == 5
    assert history.after(4) == [b"e"]
    assert history.after(3) == [b"d" * 80, b"e"]
    assert history.after(5) == []
    assert history.after(6) is None


def test_number_of_kept_patches_is_bounded():
    history = PatchHistory(max_patches=4, max_bytes=100)
    for number in range(10):
        history.keep([b"%d" % number])
    assert history.after(6) == [b"6", b"7", b"8", b"9"]
    assert history.after(5) is None
