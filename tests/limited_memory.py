"""A cgroup with a memory limit, for processes that the kernel's OOM killer is to end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.harness import until

LIMIT_BYTES = 400 * 2**20


def limited_cgroup() -> Iterator[Path]:
    """A new cgroup with a memory limit, of version 2 or 1; skips the test if it is not allowed."""
    second = Path("/sys/fs/cgroup")
    controlled = second / "cgroup.subtree_control"
    is_second = controlled.exists() and "memory" in controlled.read_text().split()
    group = (second if is_second else second / "memory") / f"strata-test-{os.getpid()}"
    limit = "memory.max" if is_second else "memory.limit_in_bytes"
    swap = ("memory.swap.max", "0") if is_second else ("memory.swappiness", "0")
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT_BYTES))
        if (group / swap[0]).exists():
            (group / swap[0]).write_text(swap[1])
    except OSError as error:
        pytest.skip(f"this user may not create a cgroup with a memory limit: {error}")
    yield group
    until(
        lambda: not (group / "cgroup.procs").read_text(), "the end of all processes in the cgroup"
    )
    group.rmdir()


def entered(group: Path, command: list[str]) -> list[str]:
    """The command that runs a program in a cgroup, with its children."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]
