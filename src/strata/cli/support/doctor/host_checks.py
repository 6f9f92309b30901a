"""Checks of this host: fork, limits of processes, shared memory, versions of packages."""

import multiprocessing
import os
import platform
import re
import resource
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from strata import __version__, extras
from strata.cli.support.doctor.check_result import Check, fix, ok, unchecked
from strata.config import Settings

DISTRIBUTION = "strata-runtime"
SHOWN = ("numpy", "protobuf", "torch", "transformers", "lightning", "jax", "ray")
FEW_WORKERS = 64
FEW_FILES = 1024
SHARED_BYTES = 64 * 2**20
"""The size of /dev/shm in a container that was started without `--shm-size`."""

REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")


def host_checks(settings: Settings) -> list[Check]:
    """The checks of this host."""
    return [_fork(), _open_files(settings), _file_size(), _shared_memory(), *version_checks()]


def _fork() -> Check:
    """Fork a process, as the agent does for replacements of workers."""
    method = multiprocessing.get_start_method()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    _, code = os.waitpid(pid, 0)
    if code:
        return fix(
            "fork",
            f"a forked process ended with status {code}",
            "set warm_starts = false in strata.toml",
        )
    return ok("fork", f"works; multiprocessing starts processes by {method}")


def _open_files(settings: Settings) -> Check:
    """The limit of open files; the coordinator raises its own to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    limits = f"soft limit {soft}, hard limit {hard}"
    raising = "raise it: ulimit -Hn 65536 (as root), or LimitNOFILE="
    if not extras.installed("uvicorn"):  # a host of workers
        if most < FEW_FILES:
            return fix("open files", f"{limits}, too few for data and checkpoints", raising)
        return ok("open files", limits)
    # Imported here: a host of workers has no libraries of a coordinator.
    from strata.coordinator.connection_capacity import capacity

    workers = capacity(settings.max_workers, most).workers
    if workers < FEW_WORKERS:
        found = f"the hard limit is {hard}, enough for {workers} workers"
        return fix("open files", found, raising)
    return ok("open files", f"{limits}: up to {workers:,} workers")


def _file_size() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        return fix("file size", f"files are limited to {soft:,} bytes", "ulimit -f unlimited")
    return ok("file size", "unlimited")


def _shared_memory() -> Check:
    """The shared memory that torch's loader processes use."""
    if not os.path.isdir("/dev/shm"):
        return unchecked("shared memory", "there is no /dev/shm")
    total = shutil.disk_usage("/dev/shm").total
    size = f"/dev/shm has {total / 2**20:,.0f} MiB"
    if total <= SHARED_BYTES and installed("torch"):
        return fix(
            "shared memory", f"{size}, too little for torch's loaders", "docker run --shm-size=8g"
        )
    return ok("shared memory", size)


def version_checks() -> list[Check]:
    """The versions of Python and packages, and those that are older than is supported."""
    known = [f"{name} {number}" for name in SHOWN if (number := installed(name))]
    parts = [f"Python {platform.python_version()}", f"strata {__version__}", *known]
    found = [ok("versions", ", ".join(parts))]
    try:
        required = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return [*found, unchecked("packages", f"{DISTRIBUTION} runs from source, not installed")]
    wrong = [check for each in required if (check := _outdated(each))]
    return found + (wrong or [ok("packages", "each is at least the lowest supported version")])


def installed(name: str) -> str:
    """The installed version of a package; empty if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _outdated(requirement: str) -> Check | None:
    """A check to fix if a package is older than required, or missing without being optional."""
    parsed = REQUIREMENT.match(requirement)
    if parsed is None:
        return None
    name, bounds, condition = parsed[1], parsed[2], parsed[3] or ""
    number = installed(name)
    if not number:
        if condition:
            return None  # of an extra, or of another system
        return fix(name, "is not installed", f"{sys.executable} -m pip install '{name}'")
    lowest = next((each.strip()[2:].strip() for each in bounds.split(",") if ">=" in each), "")
    if lowest and release(number) < release(lowest):
        install = f"{sys.executable} -m pip install '{name}>={lowest}'"
        return fix(name, f"{number} is older than {lowest}", install)
    return None


def release(number: str) -> list[int]:
    """The numbers of a version, without what follows them: 2.6 of `2.6.0+cu124` and `2.6`."""
    digits = re.match(r"\d+(\.\d+)*", number)
    parts = [int(each) for each in digits[0].split(".")] if digits else []
    while parts and parts[-1] == 0:
        parts.pop()
    return parts
