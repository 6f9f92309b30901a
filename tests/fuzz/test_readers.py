"""Readers of untrusted bytes keep their promise for some hundred inputs, the same in every run.

`make fuzz SECONDS=…` runs each target for longer and, where atheris is installed, with coverage.
"""

import subprocess
import sys

import pytest

from tests.fuzz.__main__ import run_plainly
from tests.fuzz.targets import NAMES, Target

RUNS = 60
GROUPS = 4


@pytest.mark.parametrize("group", range(GROUPS))
def test_readers_return_right_values_or_plain_errors(group):
    names = NAMES[group::GROUPS]
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", *names, "--runs", str(RUNS)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("no defect") == len(names)


def test_defect_of_a_reader_is_found(monkeypatch, tmp_path):
    """A reader that fails for one byte value is found, and the input that shows it is kept."""

    def check(data):
        if b"\xff" in data:
            raise KeyError("255")

    target = Target("planted", lambda: [b"0123456789"], check)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.fuzz.targets.load", lambda name: target)
    with pytest.raises(KeyError):
        run_plainly("planted", 0, 1_000, 60)
    (kept,) = (tmp_path / "build" / "fuzz").iterdir()
    assert b"\xff" in kept.read_bytes()
