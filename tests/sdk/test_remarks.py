"""A script's warnings and errors are recorded as facts, truncated and rate-limited."""

import pytest

from strata.core.workers.worker_facts import LogLine
from strata.sdk.record import output_capture
from strata.sdk.record.output_capture import WarningRecorder


class Recorder:
    def __init__(self):
        self.facts = []

    def emit(self, fact):
        self.facts.append(fact)


@pytest.fixture
def recorder():
    return Recorder()


def test_warnings_and_errors_are_recorded_and_lines_get_all_output(recorder):
    lines = []
    said = WarningRecorder(recorder, lambda *line: lines.append(line))
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
        LogLine(level="warn", message="the loss is odd", source="logging"),
        LogLine(level="error", message="ERROR: no such file", source="stderr"),
    ]


def test_without_lines_the_facts_are_the_same(recorder):
    WarningRecorder(recorder, None)("error", "x" * 5_000 + "\udcff", "logging")
    assert recorder.facts == [
        LogLine(level="error", message="x" * output_capture.MAX_CHARS, source="logging")
    ]


def test_warnings_above_the_rate_are_counted_in_the_next(recorder, monkeypatch):
    now_s = [1_000.0]
    monkeypatch.setattr(output_capture.time, "monotonic", lambda: now_s[0])
    said = WarningRecorder(recorder, None)
    for number in range(output_capture.PER_MINUTE + 40):
        said("warn", str(number), "logging")
    assert [fact.message for fact in recorder.facts] == [
        str(n) for n in range(output_capture.PER_MINUTE)
    ]
    now_s[0] += 60
    said("warn", "again", "logging")
    assert recorder.facts[-1] == LogLine(
        level="warn", message="again", source="logging", skipped=40
    )
