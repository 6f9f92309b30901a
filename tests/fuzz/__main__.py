"""Runs a fuzz target.

    python -m tests.fuzz NAME --seconds 600    with coverage, if atheris is installed
    python -m tests.fuzz NAME… --runs 500      the same inputs in every run
    python -m tests.fuzz NAME --input FILE     one input, such as one that failed before

An input that breaks the promise is written to `build/fuzz`, and the exit code is 1.
"""

import argparse
import atexit
import hashlib
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random
from typing import NoReturn

from tests.fuzz import targets
from tests.fuzz.mutations import MAX_BYTES, mutated

FOUND = Path("build/fuzz")
INPUT_CPU_S = 20
"""CPU seconds for one input; more count as a hang."""

INPUT_MEMORY = 300 * 2**20
"""Memory for one input, in bytes; inputs have at most 64 KiB."""

ADDRESS_SPACE = 16 * 2**30


class Hang(Exception):
    """An input took too long."""


def check(target: targets.Target, data: bytes) -> None:
    """Check one input, and the time and memory that it took."""
    signal.setitimer(signal.ITIMER_VIRTUAL, INPUT_CPU_S)
    before = _peak_memory()
    try:
        target.check(data)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    grown = _peak_memory() - before
    assert grown < INPUT_MEMORY, f"{len(data)} bytes took {grown} bytes of memory"


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _hang(signum: int, frame: object) -> NoReturn:
    raise Hang(f"an input took more than {INPUT_CPU_S} s")


def checked(target: targets.Target, data: bytes) -> None:
    """Check one input; keep it and raise if the promise is broken."""
    try:
        check(target, data)
    except BaseException:
        FOUND.mkdir(parents=True, exist_ok=True)
        place = FOUND / f"{target.name}-{hashlib.sha256(data).hexdigest()[:12]}"
        place.write_bytes(data)
        print(f"{target.name} failed for the {len(data)} bytes in {place}", file=sys.stderr)
        if len(data) <= 300:
            print(repr(data), file=sys.stderr)
        raise


def run_plainly(name: str, seed: int, runs: int, seconds: float) -> None:
    """Check inputs that are mutated without coverage."""
    target = targets.load(name)
    inputs, dice = target.seeds(), Random(f"{name} {seed}")
    end, number = time.monotonic() + seconds, 0
    for data in inputs:
        checked(target, data)
    while number < runs and time.monotonic() < end:
        number += 1
        checked(target, mutated(dice, inputs))
    print(f"{name}: {number} inputs, no defect")


def run_with_coverage(name: str, seconds: int) -> None:
    """Check inputs that libFuzzer makes, guided by the lines that they reach; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["strata"]):
        target = targets.load(name)
    corpus = Path(tempfile.mkdtemp(prefix="strata-fuzz-"))
    for number, data in enumerate(target.seeds()):
        (corpus / f"{number}").write_bytes(data)
    FOUND.mkdir(parents=True, exist_ok=True)
    options = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES}",
        f"-timeout={3 * INPUT_CPU_S}",
        f"-artifact_prefix={FOUND}/{name}-libfuzzer-",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup(options, lambda data: checked(target, data))
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(corpus)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="+", choices=targets.NAMES)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--input", type=Path)
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGVTALRM, _hang)
    cache = tempfile.mkdtemp(prefix="strata-fuzz-cache-")
    os.environ["STRATA_DATA_CACHE_DIR"] = cache
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        if given.input is not None:
            checked(targets.load(given.names[0]), given.input.read_bytes())
        elif given.runs or not _has_atheris():
            if not given.runs:
                print("atheris is not installed: inputs are mutated without coverage")
            runs, seconds = given.runs or sys.maxsize, given.seconds or sys.maxsize
            for name in given.names:
                run_plainly(name, given.seed, runs, seconds)
        else:
            run_with_coverage(given.names[0], given.seconds or 60)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _has_atheris() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
