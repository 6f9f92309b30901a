"""Hugging Face's `Trainer` under Strata:

    def make_trainer():
        model = AutoModelForSequenceClassification.from_config(config)
        return Trainer(model, TrainingArguments("out", ...), train_dataset=data, ...)

    with strata.join() as run:
        trainer = strata.torch.train(run, make_trainer)        # in place of trainer.train()
        trainer.save_model("final")

`make_trainer` is called once in each generation, after the workers have formed a process group: it
must create the model and the `TrainingArguments`. The Trainer uses `DistributedDataParallel` among
the workers. It resumes by `resume_from_checkpoint`: weights, optimizer, scheduler, gradient scaler,
`TrainerState` and stateful callbacks are restored, and the Trainer skips the batches of the epoch
that were trained. Checkpoints are Strata's; the Trainer's own `save_strategy` is independent of
them.

A transform of the dataset that draws random numbers draws others after a recovery, as after any
resume of a Trainer.
"""

import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from strata.checkpoint.read.weight_names import Rename
from strata.checkpoint.state.random_generators import random_state, set_random_state
from strata.config import export
from strata.errors import InvalidArgument
from strata.sdk.run import Run
from strata.sdk.state.initial_weights import initial_weights
from strata.torch.loop_supervisor import LoopSupervisor, copied, saved_buffers

log = logging.getLogger(__name__)

FILES = {"model": "pytorch_model.bin", "optimizer": "optimizer.pt", "scheduler": "scheduler.pt"}
SCALER_FILE = "scaler.pt"
STATE_FILE = "trainer_state.json"
NUMBERS = (int, float)


def train(
    run: Run,
    make_trainer: Callable[[], Trainer],
    *,
    from_: str | os.PathLike[str] | None = None,
    strict: bool = True,
    rename: Rename | None = None,
) -> Trainer:
    """Train with the Trainer that `make_trainer` builds; return the Trainer that finished.

    `from_`, `strict` and `rename` are those of `run.restore`: a new task starts with these weights
    of the model.

    A stop raises `StopRequested` after the state was saved, which ends a `with strata.join()` block
    quietly: code after this call runs only if the training finished.
    """
    if not callable(make_trainer) or isinstance(make_trainer, Trainer):
        raise InvalidArgument(
            "strata.torch.train needs a function that builds the Trainer, not the Trainer",
            hint="move the model, the TrainingArguments and the Trainer into a function",
        )
    if not torch.accelerator.is_available():
        # Without this, TrainingArguments on CPUs count one process, and every worker trains alone.
        export({"ACCELERATE_USE_CPU": "true"})
    initial = initial_weights(from_, strict, rename)
    supervisor = LoopSupervisor(run, "huggingface", group_of_one=False, initial=initial)
    began = random_state()
    last: list[weakref.ref[torch.nn.Module]] = []

    def attempt(tree: dict[str, Any]) -> Trainer:
        set_random_state(began)  # a model that is built again is the same
        trainer = make_trainer()
        _require_supported(run, trainer)
        if not tree and [each() for each in last] == [trainer.model]:
            raise InvalidArgument(
                "the task starts again, but make_trainer returned an already trained model",
                hint="build the model inside make_trainer",
            )
        last[:] = [weakref.ref(trainer.model)]
        supervisor.load_initial(trainer.model)
        _run_trainer(supervisor, trainer, tree)
        return trainer

    return supervisor.follow(attempt)


def _run_trainer(supervisor: LoopSupervisor, trainer: Trainer, tree: dict[str, Any]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="strata-resume-")) if tree else None
    follower = _StepCallback(supervisor, trainer, folder, tree)
    trainer.add_callback(follower)
    try:
        if folder is not None:
            _write_checkpoint(folder, tree)
            trainer.args.restore_callback_states_from_checkpoint = True
        trainer.train(resume_from_checkpoint=None if folder is None else str(folder))
    except _AlreadyFinished:
        if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
            trainer._load_best_model()
    finally:
        follower.remove_files()
        trainer.remove_callback(follower)


class _AlreadyFinished(Exception):
    """Raised if the resumed training had already finished."""


class _StepCallback(TrainerCallback):
    """Reports complete steps of a Trainer to the supervisor."""

    def __init__(
        self,
        supervisor: LoopSupervisor,
        trainer: Trainer,
        folder: Path | None,
        tree: dict[str, Any],
    ) -> None:
        self._supervisor = supervisor
        self._trainer = trainer
        self._folder = folder
        self._tree = tree
        self._resumed = bool(tree)
        self._buffers: dict[str, torch.Tensor] = {}
        self._logs: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._buffers = saved_buffers(self._trainer.model)
        if not self._resumed:
            return
        finished = bool(self._tree["finished"])
        self._supervisor.resumed(self._reader(finished, copied(self._buffers)))
        self._tree.clear()  # the Trainer has its own copies now
        if finished:
            raise _AlreadyFinished

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._steps_per_epoch() == 0:
            self._between_steps(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._between_steps(state)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._supervisor.begin_update()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._logs |= {k: float(v) for k, v in (logs or {}).items() if isinstance(v, NUMBERS)}

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step > self._supervisor.run.steps:
            self._complete(state, finished=True)
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._supervisor.run.discard_model()  # these weights are not those of the last step
            self._supervisor.state.discard()

    def remove_files(self) -> None:
        """Delete the files that the Trainer resumed from."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _between_steps(self, state: Any) -> None:
        if self._resumed:
            self._supervisor.restore_random()
            self._resumed = False
        elif state.global_step > self._supervisor.run.steps:
            self.remove_files()
            self._complete(state, finished=False)

    def _complete(self, state: Any, *, finished: bool) -> None:
        steps = self._steps_per_epoch()
        if abs(state.epoch - state.global_step / steps) * steps >= 1 - 1e-6:
            raise InvalidArgument(
                "a callback ended an epoch early (should_epoch_stop): the Trainer cannot resume "
                "at the right position in the data after that",
                hint="end the training instead, with should_training_stop",
            )
        logs, self._logs = self._logs, {}
        loss = logs.pop("loss", None)
        logs.pop("epoch", None)
        self._supervisor.complete(
            state.global_step,
            self._reader(finished, self._supervisor.shared_buffers(self._buffers)),
            loss=loss,
            epoch=int(state.epoch or 0),
            metrics=logs,
        )

    def _reader(
        self, finished: bool, buffers: dict[str, torch.Tensor]
    ) -> Callable[[], dict[str, Any]]:
        trainer = self._trainer
        tokens = trainer.state.num_input_tokens_seen

        def read() -> dict[str, Any]:
            trainer.state.num_input_tokens_seen = tokens
            scaler = getattr(trainer.accelerator, "scaler", None)
            return {
                "model": {**trainer.model.state_dict(), **buffers},
                "optimizer": trainer.optimizer.state_dict(),
                "scheduler": trainer.lr_scheduler.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "trainer_state": _trainer_state(trainer),
                "config": _model_config(trainer),
                "finished": finished,
            }

        return read

    def _steps_per_epoch(self) -> int:
        loader = self._trainer.callback_handler.train_dataloader
        batches = len(loader)
        accumulated = self._trainer.args.gradient_accumulation_steps
        return max(-(-batches // accumulated), 1)


def _trainer_state(trainer: Trainer) -> str:
    """`TrainerState` as the Trainer writes it, with the state of callbacks that have one."""
    state = asdict(trainer.state)
    stateful: dict[str, Any] = {}
    for each in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(each, ExportableState):
            stateful.setdefault(type(each).__name__, []).append(each.state())
    state["stateful_callbacks"] = {
        name: found[0] if len(found) == 1 else found for name, found in stateful.items()
    }
    try:
        return json.dumps(state, sort_keys=True)
    except TypeError as error:
        raise InvalidArgument(
            f"the Trainer's state cannot be saved: {error}",
            hint="the state() of a callback holds numbers, text, lists and dicts only",
        ) from error


def _model_config(trainer: Trainer) -> str | None:
    """The config of the model as JSON, for `strata checkpoints export --format hf`."""
    if not isinstance(trainer.model, PreTrainedModel):
        return None
    config = json.loads(trainer.model.config.to_json_string())
    return json.dumps(config | {"architectures": [type(trainer.model).__name__]})


def _write_checkpoint(folder: Path, tree: dict[str, Any]) -> None:
    """Write the folder that `resume_from_checkpoint` reads."""
    for name, file in FILES.items():
        torch.save(tree[name], folder / file)
    if tree["scaler"] is not None:
        torch.save(tree["scaler"], folder / SCALER_FILE)
    (folder / STATE_FILE).write_text(tree["trainer_state"], "utf-8")


def _require_supported(run: Run, trainer: Trainer) -> None:
    """Raise for what cannot be resumed exactly, with its name."""
    args = trainer.args
    if (args.process_index, args.world_size) != (run.rank, run.world_size):
        raise InvalidArgument(
            f"the TrainingArguments are those of process {args.process_index} of "
            f"{args.world_size}, but this is worker {run.rank} of {run.world_size}",
            hint="create the TrainingArguments inside make_trainer",
        )
    sampling = getattr(args, "train_sampling_strategy", "random")
    refused = {
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "FSDP through accelerate": trainer.is_fsdp_enabled or trainer.is_fsdp_xla_enabled,
        "a model that is sharded when it is loaded": getattr(
            trainer, "is_distributed_loading_by_transformers", False
        ),
        "auto_find_batch_size": args.auto_find_batch_size,
        "ignore_data_skip": args.ignore_data_skip,
        "ddp_broadcast_buffers=False": args.ddp_broadcast_buffers is False,
        "enable_jit_checkpoint": getattr(args, "enable_jit_checkpoint", False),
        "an IterableDataset": isinstance(trainer.train_dataset, torch.utils.data.IterableDataset),
        "a train_dataset without a length": not hasattr(trainer.train_dataset, "__len__"),
        f"train_sampling_strategy={sampling!r}": sampling not in ("random", "sequential"),
        "use_seedable_sampler=False": not args.accelerator_config.use_seedable_sampler,
        "dispatch_batches": bool(args.accelerator_config.dispatch_batches),
        "split_batches": bool(args.accelerator_config.split_batches),
    }
    for name, given in refused.items():
        if given:
            raise InvalidArgument(
                f"strata.torch.train does not support {name}: it could not resume exactly",
                hint="leave it out, or write the loop with run.step()",
            )
