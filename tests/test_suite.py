"""Guards the runner of the whole suite: what needed a second try is counted and listed, and only a
test that passed in the end counts as passed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("suite.py")
TESTS = """
from pathlib import Path

def test_good():
    pass

def test_flaky():
    first, again = Path("flaky"), Path("flaky").exists()
    first.touch()
    assert again

def test_bad():
    assert not Path("bad").exists()
"""


@pytest.fixture
def suite(tmp_path):
    """Runs the suite of a small project: the exit code, what was printed, and the report."""
    (tmp_path / "test_some.py").write_text(TESTS, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")

    def run():
        command = [sys.executable, str(SUITE), "-q"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        report = tmp_path / "build" / "test" / "second_try.json"
        found = json.loads(report.read_text("utf-8")) if report.exists() else None
        return done.returncode, done.stdout, found

    return run


@pytest.mark.slow
def test_flaky_test_is_counted_and_listed(suite):
    code, shown, report = suite()
    assert code == 0, shown
    assert "1 test needed a second try and passed:\n  test_some.py::test_flaky" in shown
    assert report == {"needed_second_try": ["test_some.py::test_flaky"], "failed_twice": []}


@pytest.mark.slow
def test_test_that_fails_twice_fails_the_suite(suite, tmp_path):
    (tmp_path / "bad").touch()
    (tmp_path / "flaky").touch()
    code, shown, report = suite()
    assert code == 1
    assert "1 test failed twice:\n  test_some.py::test_bad" in shown
    assert report == {"needed_second_try": [], "failed_twice": ["test_some.py::test_bad"]}


@pytest.mark.slow
def test_file_that_cannot_be_imported_fails_the_suite(suite, tmp_path):
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name", "utf-8")
    code, shown, report = suite()
    assert code not in (0, 1), shown
    assert "test_broken.py" in report["failed_twice"]
