"""Interruptions of a training loop: a membership change, and a requested stop.

Neither is a failure. `GenerationChanged` means that a worker was lost or joined: the block of
`run.step` catches it, and the loop enters the new generation; other code calls `run.recover()`.
`StopRequested` means that the task is stopping or this process got SIGTERM; the block of
`with strata.join()` catches it.

Ctrl-C in a step is a `KeyboardInterrupt` after the step, so that it is applied as a whole.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
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


class StepInterrupt:
    """Handles Ctrl-C: while a step is open, the first one waits for the end of the step.

    The handler takes the place of Python's own, never of another one. It is looked at in each step,
    because a notebook installs Python's before each cell.
    """

    def __init__(self) -> None:
        self._open = self._came = False
        self._process = os.getpid()

    def begin(self) -> None:
        """Note that a step is open."""
        self._came, self._open = False, True
        replaced = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if replaced and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._pressed)

    def end(self) -> None:
        """Note that no step is open; raises if Ctrl-C came while one was."""
        self._open = False
        if self._came:
            self._came = False
            raise KeyboardInterrupt

    def restore(self) -> None:
        """Restore Python's handler, unless another one was installed since."""
        mine = signal.getsignal(signal.SIGINT) == self._pressed
        if mine and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if not self._open or self._came or os.getpid() != self._process:
            signal.default_int_handler(number, frame)
        self._came = True
        with suppress(RuntimeError):  # a line that is being written
            print("strata: ends after this step; interrupt again to end at once", file=sys.stderr)


def is_interactive() -> bool:
    """Whether a person types the statements that run here."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)


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
