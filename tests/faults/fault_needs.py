"""What faults need of the machine: without it a fault is left out, and the reason is shown."""

import os
import subprocess
import tempfile
from functools import lru_cache
from typing import TYPE_CHECKING

from tests.faults import namespaces

if TYPE_CHECKING:
    from tests.faults.fault_matrix import Fault


@lru_cache
def _mounts() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "strata-test", folder]
        try:
            mounted = subprocess.run(mount, capture_output=True).returncode == 0
        except OSError:
            return False
        if mounted:
            subprocess.run(["umount", folder], check=True)
        return mounted


CHECKS = {
    "root": (lambda: os.geteuid() == 0, "the user is not root"),
    "mount": (_mounts, "this user may not mount a tmpfs"),
    "namespaces": (lambda: not namespaces.why_not(), "this machine makes no network namespaces"),
}


def missing(fault: "Fault") -> str:
    """Why a fault cannot be planted on this machine; empty if it can be."""
    lacks = [why for need, (found, why) in CHECKS.items() if need in fault.needs and not found()]
    assert set(fault.needs) <= CHECKS.keys(), f"{fault.name} needs {fault.needs}"
    return "; ".join(lacks)
