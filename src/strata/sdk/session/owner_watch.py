"""Ends a worker of `strata run` after the process that started it was killed.

The coordinator and the agent of such a worker are in that process, on this host. Nothing else
waits for the worker: `strata run --resume` starts new ones. So it ends itself, with the processes
that it started, instead of training on without a record.
"""

import logging
import os
import signal
import threading
import time

import psutil

LOOK_S = 1.0
GRACE_S = 5.0
"""Time for the worker to write what it has begun, for example a part of a checkpoint."""

CLOCK_S = 5.0
"""The start time of a process may be read differently after the clock was set."""

log = logging.getLogger(__name__)


def this_process() -> str:
    """This process as its workers know it: its pid and when it started."""
    return f"{os.getpid()}:{psutil.Process().create_time():.2f}"


def is_gone(owner: str) -> bool:
    """Whether a process has ended."""
    pid, _, begun_s = owner.partition(":")
    try:
        process = psutil.Process(int(pid))
        ended = process.status() == psutil.STATUS_ZOMBIE
        return ended or abs(process.create_time() - float(begun_s)) > CLOCK_S
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def end_after(owner: str) -> None:
    """Watch the process that started this worker, in a thread, and end when it has ended."""
    if owner:
        threading.Thread(
            target=_watch, args=(owner,), name="strata-owner-watch", daemon=True
        ).start()


def _watch(owner: str) -> None:
    while not is_gone(owner):
        time.sleep(LOOK_S)
    log.error("process %s, which ran this worker, was killed; the worker ends", owner)
    time.sleep(GRACE_S)
    group = os.getpgrp()
    if group == os.getpid():
        os.killpg(group, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
