"""Ends what an agent left behind that was killed and has no successor."""

import logging
import os
import signal
import time
from pathlib import Path

import psutil

from strata.agent import records
from strata.agent.child import find
from strata.agent.records import Records, held
from strata.errors import AlreadyExists

log = logging.getLogger(__name__)

WAIT_S = 2.0


def end_orphans(folder: Path) -> None:
    """Kills the processes that a dead agent's folder lists; a living agent's are left alone."""
    try:
        with held(folder):
            known = records.load(folder)
            found = [pid for kept in known.children if (pid := find(kept))]
            for pid in found:
                log.warning("ending process %d, left behind by a run that was killed", pid)
                _kill(pid)
            _wait_for(found)
            records.save(folder, Records(nonce=known.nonce))
    except AlreadyExists:
        return


def _kill(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait_for(pids: list[int]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.01)
