"""Hugging Face accelerate under Strata:

    with strata.join() as run:
        accelerator = strata.torch.Accelerator(run, mixed_precision="bf16")   # the changed line
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        run.restore(model=model, optimizer=optimizer, scheduler=scheduler)
        for epoch in run.epochs(3):
            for batch in run.loader(train_set, batch_size=32):
                with run.step():
                    accelerator.backward(loss_of(model, batch))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()

The loops are those of the run, because accelerate cannot resume a loop that it does not see.
accelerate does its part in each worker: device placement, mixed precision, gradient accumulation,
clipping. The gradients are averaged by `data_parallel`, so that a lost worker costs one step.

With `gradient_accumulation_steps=n` all micro-batches of an update are in one block, each in `with
accelerator.accumulate(model)`. Only the last one communicates.

A scheduler takes one step for each update, as with `split_batches=True`: the number of workers does
not change it. Methods that need the other workers raise an error with an alternative. Functions of
accelerate's modules (`accelerate.utils.gather`) see one process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from accelerate import Accelerator as PlainAccelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from strata.config import without_sizes
from strata.errors import InvalidArgument
from strata.sdk.run import Run
from strata.sdk.steps.step_block import Step
from strata.torch.data_parallel import data_parallel
from strata.torch.unsupported import refuse_methods, refuse_options

OWN_LOOP = "write the loop with run.step(), and see docs/TRAINING.md"
OPTIONS = {
    "deepspeed_plugin": OWN_LOOP,
    "deepspeed_plugins": OWN_LOOP,
    "fsdp_plugin": "use strata.torch.Mesh with FSDP2",
    "torch_tp_plugin": "use strata.torch.Mesh",
    "megatron_lm_plugin": OWN_LOOP,
    "parallelism_config": "use strata.torch.Mesh",
    "dataloader_config": "give these options to run.loader",
    "log_with": "record metrics with step.log",
}
METHODS = {
    "prepare_data_loader": "read with run.loader(dataset, ...), which is not prepared",
    "skip_first_batches": "run.loader resumes at the right batch by itself",
    "gather": "use run.average, or run.evaluate for metrics",
    "gather_for_metrics": "use run.evaluate",
    "reduce": "use run.average",
    "pad_across_processes": "use run.average, or run.evaluate for metrics",
    "split_between_processes": "use run.loader or run.evaluate",
    "join_uneven_inputs": "run.loader gives every worker a part of each batch",
    "wait_for_everyone": "use run.barrier(name)",
    "check_trigger": "use run.agree(value)",
    "set_trigger": "use run.agree(value)",
    "save_state": "pass everything to run.restore; the run saves it by itself",
    "load_state": "pass everything to run.restore; the run restores it by itself",
    "register_for_checkpointing": "pass it to run.restore",
    "save_model": "call torch.save where accelerator.is_main_process",
    "save": "call torch.save where accelerator.is_main_process",
    "init_trackers": "record metrics with step.log",
    "main_process_first": "use run.barrier(name) and accelerator.is_main_process",
    "local_main_process_first": "use run.barrier(name) and accelerator.is_main_process",
    "is_local_main_process": "use accelerator.is_main_process",
    "local_process_index": "use accelerator.process_index",
    "on_local_main_process": "use accelerator.on_main_process",
    "on_last_process": "use accelerator.is_last_process",
    "on_process": "use accelerator.process_index",
    "on_local_process": "use accelerator.process_index",
}


class Accelerator(PlainAccelerator):
    """An `Accelerator` of one worker; the run joins the workers. `options` are accelerate's."""

    def __init__(self, run: Run, **options: Any) -> None:
        refuse_options("Accelerator", options, OPTIONS)
        if PartialState._shared_state.get("num_processes", 1) > 1:
            raise InvalidArgument(
                "accelerate has already joined several processes",
                hint="create strata.torch.Accelerator before any other object of accelerate",
            )
        self._run = run
        with without_sizes():
            super().__init__(**options)
        if self.distributed_type != DistributedType.NO:
            raise InvalidArgument(
                f"accelerate is configured for {self.distributed_type}",
                hint="start the script with `strata run`, not with `accelerate launch`",
            )
        if self.mixed_precision not in ("no", "bf16"):
            raise InvalidArgument(
                f"Accelerator under Strata does not support mixed_precision="
                f"{self.mixed_precision!r}: its scaler would not be part of the state",
                hint="use bf16, or a loop with your own GradScaler",
            )
        run.add_step_hook(_Counter(self))

    @property
    def num_processes(self) -> int:
        """The number of workers."""
        return self._run.world_size

    @property
    def process_index(self) -> int:
        """The rank of this worker."""
        return self._run.rank

    @property
    def is_main_process(self) -> bool:
        """Whether this worker is rank 0 now."""
        return self._run.rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this worker has the last rank now."""
        return self._run.rank == self._run.world_size - 1

    def prepare_model(
        self,
        model: torch.nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> torch.nn.Module:
        """Prepare a model, and average its gradients over the workers."""
        prepared: torch.nn.Module = super().prepare_model(model, device_placement, evaluation_mode)
        if not evaluation_mode:
            data_parallel(self._run, self.unwrap_model(prepared, keep_torch_compile=False))
        return prepared

    @contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        """Keep the gradients on this worker: `step.accumulate()`."""
        step = self._run.present_step
        if step is None:
            yield  # backward() will raise
            return
        with step.accumulate():
            yield

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """A function that runs only on rank 0."""
        assert function is not None

        @wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            return function(*given, **named) if self.is_main_process else None

        return called

    def print(self, *values: Any, **named: Any) -> None:
        """Print on rank 0."""
        if self.is_main_process:
            print(*values, **named)


class _Counter:
    """Starts the micro-batches of every update with the first one, also when a block runs again."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def begin(self, step: Step) -> None:
        self._accelerator.step = 0

    def end(self, step: Step) -> None:
        pass

    def abandon(self, step: Step) -> bool:
        return True

    def lost_link(self, error: BaseException) -> bool:
        return False


refuse_methods(Accelerator, METHODS)
