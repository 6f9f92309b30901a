"""Save the final state when a worker leaves the run.

Every worker saves its part, so the loss of one fails the checkpoint for all. Then the others enter
the next generation and save again: they hold the whole model and do not wait for a replacement
(`core/checkpoints/save_schedule`). A model that is sharded over the workers cannot be saved without
the lost one; then the previous checkpoint stays the newest, and the reason is reported.
"""

import logging
import time
from collections.abc import Callable

from msgspec import Struct

from strata.errors import Fenced, NotAllowedNow, TaskEnded
from strata.sdk.interrupts import GenerationChanged
from strata.sdk.session.membership import ENDED, Membership, Recovery
from strata.sdk.session.worker_session import WorkerSession
from strata.sdk.state.restorer import PeersUnreachable
from strata.sdk.state.saver import Saver
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

RESTART_HINT = "start this process again, as its script has ended; an agent does so automatically"


class RunWentBack(NotAllowedNow):
    """The run was rolled back, but the script of this process has ended."""


class FinalCalls(Struct, frozen=True):
    """Callbacks of the final save into the run's state.

    `wanted` says whether the state after a number of steps should be saved and is not; `begin`
    starts to save it; `apply_recovery` restores the state for a generation.
    """

    wanted: Callable[[int], bool]
    begin: Callable[[int], None]
    apply_recovery: Callable[[Recovery], None]


class FinalSave:
    """Saves the final state of one worker. For the training thread."""

    def __init__(
        self, session: WorkerSession, membership: Membership, saver: Saver, calls: FinalCalls
    ) -> None:
        self._session, self._membership = session, membership
        self._saver, self._calls = saver, calls
        self._deadline_s = 0.0

    def save(self, ended: bool, timeout_s: float) -> str:
        """Save the final state if needed, and wait; returns the reason if it is not saved.

        Raises `RunWentBack` if the script has `ended` and the run was rolled back.
        """
        self._deadline_s = time.monotonic() + timeout_s
        self._saver.wait(timeout_s)
        tried = 0
        try:
            if ended:
                self._require_place()
            while not self._saver.busy and self._calls.wanted(self._membership.steps):
                if not self._enter_newest() or tried == self._membership.place.generation:
                    break
                tried = self._membership.place.generation
                self._calls.begin(self._membership.steps)
                self._saver.wait(self._left_s())
        except RunWentBack:
            raise
        except TaskEnded:
            return ""  # the other workers have saved it, or a stop skipped it
        except Exception as error:  # the worker leaves in any case, with this reason
            return f"step {self._membership.steps}: {error}"
        if self._saver.busy:
            return f"a save was still running after {timeout_s:g} s"
        return self._saver.failure

    def _left_s(self) -> float:
        return max(self._deadline_s - time.monotonic(), 0.0)

    def _enter_newest(self) -> bool:
        """Enter the newest generation with this worker's model; False if the task is over."""
        if self._membership.rebuilds:
            return True
        self._report_end()
        while self._membership.changed and not self._task_over():
            recovery = self._membership.sync(self._session, self._task_over, self._left_s())
            if recovery is None:
                break
            self._take_over(recovery)
        return not self._task_over()

    def _take_over(self, recovery: Recovery) -> None:
        """Restore the state for the generation, which must resume at the end of the script."""
        try:
            if recovery.source != "peer":
                raise RunWentBack(
                    f"the run was rolled back to step {recovery.step}", hint=RESTART_HINT
                )
            self._calls.apply_recovery(recovery)
            self._membership.restored()
        except PeersUnreachable as error:
            raise RunWentBack(error.message, hint=RESTART_HINT) from error
        except GenerationChanged as error:
            log.debug("the final state will be saved in a later generation: %s", error)

    def _report_end(self) -> None:
        """Report that this worker trains no more steps; the answer updates its standing."""
        ended = pb.EndTraining(step=self._membership.steps)
        try:
            self._session.answer(self._session.ask("end_training", ended), self._left_s())
        except TaskEnded:
            raise
        except Fenced:
            self._session.wait_for(lambda: self._membership.displaced, self._left_s())
            self._require_place()
        except NotAllowedNow as error:
            if not self._task_over():
                raise RunWentBack(error.message, hint=RESTART_HINT) from error

    def _require_place(self) -> None:
        """Raise if this worker was declared lost after training: the run continued without it."""
        if isinstance(self._session.error, TaskEnded):
            raise self._session.error
        if self._membership.displaced:
            raise RunWentBack(
                "this worker was declared lost, so its model is outdated", hint=RESTART_HINT
            )

    def _task_over(self) -> bool:
        standing = self._membership.standing
        return standing is not None and standing.task_state in ENDED
