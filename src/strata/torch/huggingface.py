"""Hugging Face's `Trainer` under Strata:

    with strata.join() as run:
        trainer = Trainer(..., callbacks=[strata.torch.HuggingFaceCallback(run)])
        trainer.train()

Steps, losses and epochs become facts; model and optimizer are restored before the first step and
saved when a checkpoint is due, also on SIGTERM; a stop ends the training after its present step.
"""

from typing import Any

from transformers import TrainerCallback

from strata.sdk.run import Run
from strata.torch.loops import Loop


class HuggingFaceCallback(TrainerCallback):
    """Tells a run what a `Trainer` does."""

    def __init__(self, run: Run) -> None:
        self._loop = Loop(run)
        self._loss: float | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Model and optimizer are there now: they are brought to where the task goes on."""
        optimizer, scheduler = others.get("optimizer"), others.get("lr_scheduler")
        state.global_step = self._loop.begin(
            model=model, optimizer=_inner(optimizer), scheduler=_inner(scheduler)
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The trainer's own figures; the loss goes with the next step."""
        self._loss = (logs or {}).get("loss", self._loss)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One optimizer step was applied."""
        if not self._loop.stepped(self._loss, int(state.epoch or 0)):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """It may have come to its end before it could save because of a stop."""
        self._loop.ended()


def _inner(wrapped: Any) -> Any:
    """What Accelerate wraps, since only that has the same state in every process."""
    return getattr(wrapped, "optimizer", None) or getattr(wrapped, "scheduler", None) or wrapped
