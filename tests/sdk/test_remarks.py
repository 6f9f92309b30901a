"""Guards that what a script warns of is a fact, briefly and not too often, and nothing else is."""

import pytest

from strata.core.worker_facts import LogLine
from strata.sdk import remarks
from strata.sdk.remarks import Remarks


class Recorder:
    def __init__(self):
        self.facts = []

    def emit(self, fact):
        self.facts.append(fact)


@pytest.fixture
def recorder():
    return Recorder()


def test_warnings_and_errors_are_facts_and_the_lines_get_everything(recorder):
    lines = []
    said = Remarks(recorder, lambda *line: lines.append(line))
    told = [
        ("info", "epoch 1", "logging"),
        ("warn", "the loss is odd", "logging"),
        ("warn", "50 %|█████     |", "stderr"),
        ("error", "ERROR: no such file", "stderr"),
        ("info", "hello", "stdout"),
    ]
    for line in told:
        said(*line)
    assert lines == told
    assert recorder.facts == [
        LogLine("warn", "the loss is odd", "logging"),
        LogLine("error", "ERROR: no such file", "stderr"),
    ]


def test_without_lines_the_facts_are_the_same(recorder):
    Remarks(recorder, None)("error", "x" * 5_000 + "\udcff", "logging")
    assert recorder.facts == [LogLine("error", "x" * remarks.MAX_CHARS, "logging")]


def test_many_a_minute_are_counted_and_told_by_the_next(recorder, monkeypatch):
    now_s = [1_000.0]
    monkeypatch.setattr(remarks.time, "monotonic", lambda: now_s[0])
    said = Remarks(recorder, None)
    for number in range(remarks.PER_MINUTE + 40):
        said("warn", str(number), "logging")
    assert [fact.message for fact in recorder.facts] == [str(n) for n in range(remarks.PER_MINUTE)]
    now_s[0] += 60
    said("warn", "again", "logging")
    assert recorder.facts[-1] == LogLine("warn", "again", "logging", skipped=40)
