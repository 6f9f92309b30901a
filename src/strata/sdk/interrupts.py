"""Interruptions of a training loop: a membership change, and a requested stop.

Neither is a failure. `GenerationChanged` means that a worker was lost or joined: the block of
`run.step` catches it, and the loop enters the new generation; other code calls `run.recover()`.
`StopRequested` means that the task is stopping or this process got SIGTERM; the block of
`with strata.join()` catches it.
"""

import os
import signal
import threading
from types import FrameType

from strata.errors import NotAllowedNow


class GenerationChanged(NotAllowedNow):
    """The membership changed: `run.recover()` enters the new generation."""

    code = "generation_changed"


class StopRequested(NotAllowedNow):
    """The task is stopping, or this process got SIGTERM."""

    code = "stop_requested"


class TerminationNotice:
    """Handles SIGTERM while installed: sets `reason` instead of ending the process.

    Only the main thread can install a handler; in any other thread `install` does nothing.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._before: object = signal.SIG_DFL

    def install(self) -> None:
        """Install the handler; an earlier handler is still called."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.getsignal(signal.SIGTERM)
        if self._before is not None:  # a handler not installed by Python cannot be restored
            signal.signal(signal.SIGTERM, self._noted)
            _installed.add(self)

    def restore(self) -> None:
        """Restore the earlier handler, unless another one was installed since."""
        if self in _installed and threading.current_thread() is threading.main_thread():
            _installed.discard(self)
            if signal.getsignal(signal.SIGTERM) == self._noted:
                signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]

    def _noted(self, number: int, frame: FrameType | None) -> None:
        self.reason = "SIGTERM came"
        if callable(self._before):
            self._before(number, frame)


_installed: set[TerminationNotice] = set()
_masks = threading.local()


def _before_fork() -> None:
    """Block SIGTERM during a fork, so that the child can remove the handler first.

    A child must end on SIGTERM. Python drops a signal that arrives in a child before its hooks ran.
    """
    if _installed:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork_in_parent() -> None:
    if _installed:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _after_fork_in_child() -> None:
    if _installed:
        for notice in list(_installed):
            notice.restore()
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
