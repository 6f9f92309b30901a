"""Guards the display of values: every state has a glyph, times and sizes are short, text is
escaped."""

from typing import get_args

import pytest

from strata.cli import logs
from strata.cli.support import tables
from strata.coordinator.logs.log_entries import Level
from strata.coordinator.rest.response_models import (
    BarrierState,
    CheckpointStatus,
    TaskState,
    WorkerStatus,
)


@pytest.mark.parametrize("states", [WorkerStatus, TaskState, BarrierState, CheckpointStatus])
def test_every_state_has_a_glyph(states):
    assert set(get_args(states)) <= tables.STATES.keys()


def test_every_level_has_a_colour():
    assert set(get_args(Level)) == logs.STYLES.keys()


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1536, "1.54 kB"),
        (999_700, "1 MB"),
        (13_827_156_048, "13.8 GB"),
        (10**18, "1,000 PB"),
    ],
)
def test_sizes(size_bytes, shown):
    assert tables.size(size_bytes) == shown


@pytest.mark.parametrize(
    ("passed_s", "shown"),
    [
        (-5, "now"),
        (0.9, "now"),
        (3, "3 s ago"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (7200, "2 h ago"),
        (86_400 * 40, "40 d ago"),
    ],
)
def test_moments(passed_s, shown):
    assert tables.ago(1_000_000_000_000, 1_000_000_000_000 + int(passed_s * 1000)) == shown


def test_long_name_keeps_both_ends():
    assert tables.shortened("short", 9) == "short"
    assert tables.shortened("worker-of-the-north-17", 9) == "work…h-17"


def test_text_can_neither_control_the_terminal_nor_break_a_line():
    assert tables.plain("a\x1b[2J\nb\r\nc\x9bd") == "a\\x1b[2J b c\\x9bd"
