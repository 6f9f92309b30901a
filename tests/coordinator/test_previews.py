"""Previews of samples: newest first, fair among workers, bounded."""

import msgspec
import pytest

from strata.coordinator.sessions.preview_store import (
    MAX_DATASETS,
    MAX_PREVIEW_BYTES,
    MAX_SAMPLES,
    MAX_WORKERS,
    Previews,
)
from strata.errors import InvalidArgument


def sent(*ids, **more):
    return msgspec.json.encode([{"id": str(n), "features": {"x": n}, **more} for n in ids]).decode()


def test_preview_takes_workers_in_turn():
    previews = Previews()
    previews.note("d", "a", sent(1, 2))
    previews.note("d", "b", sent(3))
    previews.note("d", "a", sent(4, 5))
    assert [sample.id for sample in previews.newest("d", 10)] == ["4", "3", "5"]
    assert [sample.worker_id for sample in previews.newest("d", 2)] == ["a", "b"]
    assert previews.newest("other", 10) == []


def test_sender_is_the_worker_of_a_preview_sample():
    previews = Previews()
    previews.note("d", "a", sent(1, worker_id="another"))
    assert previews.newest("d", 1)[0].worker_id == "a"


def test_preview_of_a_disconnected_worker_is_deleted():
    previews = Previews()
    previews.note("d", "a", sent(1))
    previews.forget("a")
    assert previews.newest("d", 1) == []


@pytest.mark.parametrize(
    "words", ["", "{}", "[1]", '[{"id": 1}]', "[" * 5_000, "null", '[{"id": "a"}]']
)
def test_invalid_preview_is_refused(words):
    with pytest.raises(InvalidArgument, match="not a list of samples"):
        Previews().note("d", "a", words)


def test_previews_are_bounded():
    previews = Previews()
    with pytest.raises(InvalidArgument, match="bytes"):
        previews.note("d", "a", " " * (MAX_PREVIEW_BYTES + 1))
    for number in range(MAX_WORKERS + 5):
        previews.note("d", f"w{number}", sent(*range(MAX_SAMPLES + 5)))
    assert len(previews.newest("d", 10**6)) == MAX_WORKERS * MAX_SAMPLES
    for number in range(MAX_DATASETS):
        previews.note(f"d{number}", "a", sent(1))
    assert previews.newest("d", 1) == []
    assert len(previews.newest(f"d{MAX_DATASETS - 1}", 5)) == 1
