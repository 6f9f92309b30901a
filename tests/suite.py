"""Run the whole test suite; run what failed once more, alone, and report it.

    python -m tests.suite [pytest arguments]

The first run uses three processes: one test in three mostly waits, so this fills two cores. A test
that fails there may only have lost the race for a busy machine, so the failed tests run a second
time, one after the other. Tests that passed on the second try are listed and counted at the end and
in `build/test/second_try.json`; the JUnit files of both runs are beside it. The exit code is 0 only
if every test passed in one of the two runs.
"""

import json
import subprocess
import sys
from pathlib import Path

REPORTS = Path("build/test")
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
PASSED, FAILED = 0, 1
PROCESSES = "3"


def run(name: str, *arguments: str) -> int:
    """Run pytest and return its exit code; the JUnit report is called `name`."""
    report = f"--junitxml={REPORTS / name}.xml"
    return subprocess.run([sys.executable, "-m", "pytest", report, *arguments]).returncode


def last_failed() -> set[str]:
    """Return the ids of the tests that pytest's cache lists as failed."""
    return set(json.loads(LAST_FAILED.read_text("utf-8"))) if LAST_FAILED.exists() else set()


def report(passed: list[str], failed: list[str]) -> None:
    """Print and store which tests needed a second try, and which of them failed it too."""
    result = {"needed_second_try": passed, "failed_twice": failed}
    (REPORTS / "second_try.json").write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    for count, verdict, names in (
        (len(passed), "needed a second try and passed", passed),
        (len(failed), "failed twice", failed),
    ):
        print(f"{count} test{'' if count == 1 else 's'} {verdict}{':' if names else ''}")
        for name in names:
            print(f"  {name}")


def main(arguments: list[str]) -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    # The cache is cleared, so that it lists failures of this run and none of an earlier one.
    at_once = ["-n", PROCESSES, "--dist", "worksteal", "-rs"]  # what was skipped, and why
    code = run("first", *at_once, "--cache-clear", *arguments)
    first = last_failed()
    if code == PASSED:
        report([], [])
        return code
    if code != FAILED or not first:
        return code  # interrupted, or an error outside of the tests: a second try would hide it
    print(f"{len(first)} tests failed; each runs once more, alone", flush=True)
    code = run("second", "--last-failed", *arguments)
    second = last_failed() if code in (PASSED, FAILED) else first
    report(sorted(first - second), sorted(second))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
