"""What interrupts a training loop on purpose: a change of membership, and the wish to stop.

Neither is a failure. `GenerationChanged` says that the group is another one now: call `run.sync()`
and go on from where it says. `StopRequested` comes only out of waits that a stop makes pointless;
a loop sees the wish in what `run.step` returns, and a `with strata.join()` block ends quietly
when it is raised through it.
"""

import os
import signal
import threading
from types import FrameType

from strata.errors import NotAllowedNow
from strata.sdk import forks


class GenerationChanged(NotAllowedNow):
    """The membership changed: `run.sync()` enters the new generation."""

    code = "generation_changed"


class StopRequested(NotAllowedNow):
    """The task is stopping, or this process was told to end."""

    code = "stop_requested"


class TerminationNotice:
    """Notes SIGTERM instead of dying of it, while installed; `reason` is set once it came.

    Signals can be handled in the main thread only; in any other nothing is installed.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._process = os.getpid()
        self._installed = False
        self._before: object = signal.SIG_DFL

    def install(self) -> None:
        """Begins to listen; a handler that was there is still called."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.getsignal(signal.SIGTERM)
        if self._before is None:
            return  # a handler that Python did not install cannot be put back
        signal.signal(signal.SIGTERM, self._noted)
        self._installed = True
        forks.tell(self)

    def restore(self) -> None:
        """Puts back what was there before, unless somebody else has taken over since."""
        if self._installed and threading.current_thread() is threading.main_thread():
            self._installed = False
            if signal.getsignal(signal.SIGTERM) == self._noted:
                signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]

    def became_child(self) -> None:
        """A forked child dies of SIGTERM as it would without us."""
        self.restore()

    def _noted(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # The signal came between the fork and the moment the child was told of it.
            self.restore()
            os.kill(os.getpid(), number)
            return
        self.reason = "SIGTERM came"
        if callable(self._before):
            self._before(number, frame)
