"""Lightning's `Trainer` under Strata:

    with strata.join() as run:
        trainer = Trainer(..., callbacks=[strata.torch.LightningCallback(run)])
        trainer.fit(model, loader)

Steps, losses and epochs become facts; the module and its optimizers are restored before the first
step and saved when a checkpoint is due, also on SIGTERM; a stop ends the fit after its step.
"""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from strata.sdk.run import Run
from strata.torch.loops import Loop


class LightningCallback(Callback):
    """Tells a run what a Lightning `Trainer` does."""

    def __init__(self, run: Run) -> None:
        self._loop = Loop(run)
        self._seen = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Module and optimizers are there now: they are brought to where the task goes on."""
        optimizers = {f"optimizer{n}": each for n, each in enumerate(trainer.optimizers)}
        self._loop.begin(model=pl_module, **optimizers)
        self._seen = trainer.global_step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch was trained; it is a step unless gradients are still being accumulated."""
        if trainer.global_step == self._seen:
            return
        self._seen = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        told = None if loss is None else float(loss)
        if not self._loop.stepped(told, trainer.current_epoch):
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """It may have come to its end before it could save because of a stop."""
        self._loop.ended()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning hears SIGTERM itself, and tells by an exception of its own."""
        if isinstance(exception, SIGTERMException):
            self._loop.preempted()
