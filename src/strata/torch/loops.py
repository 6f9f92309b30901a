"""What other frameworks' training loops have to tell a run, and to hear from it.

Their callbacks (`HuggingFaceCallback`, `LightningCallback`) are thin: a step is marked with its
loss, a checkpoint is saved when one is due, a change of membership is taken up, and the loop hears
when to end. The state is whatever has `state_dict`, restored in place before the first step.
"""

from typing import Any

from strata.sdk.run import Run
from strata.sdk.signals import GenerationChanged, StopRequested


class Loop:
    """Follows a loop that somebody else runs."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._state: Any = None

    def begin(self, **state: Any) -> int:
        """Brings the state to where the task goes on; how many steps it has had."""
        self._state = self.run.restore({name: each for name, each in state.items() if each})
        return self.run.steps

    def stepped(self, loss: float | None = None, epoch: int | None = None) -> bool:
        """A step was applied; False when the loop should end."""
        run = self.run
        try:
            goes_on = run.mark_step(loss=loss, epoch=epoch)
        except GenerationChanged:
            goes_on = self._recovered()
        if run.save_due():
            run.save(self._state)
        return goes_on

    def ended(self) -> None:
        """The loop is through: a last save that was still to come is made now."""
        if self.run.stop_requested and not self.run.ending:
            self.run.save(self._state)

    def preempted(self) -> None:
        """The framework took a SIGTERM for itself: saves at once."""
        self.run.save(self._state)

    def _recovered(self) -> bool:
        try:
            self.run.recover()
        except StopRequested:
            return False
        return True
