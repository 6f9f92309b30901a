"""Lightning's `Trainer` under Strata:

    with strata.join() as run:
        trainer = Trainer(strategy=strata.torch.LightningStrategy(run), max_epochs=5, ...)
        trainer.fit(model, train_loader, valid_loader)

The strategy is Lightning's `DDPStrategy` among the workers of the run. `fit` is started again after
each change of membership; it resumes by `ckpt_path`, so that weights, optimizer, schedulers, loop
progress, callbacks and the precision plugin are restored. The checkpoint is Strata's, in memory.

Lightning does not resume everything exactly by itself. This strategy adds: the batches of the epoch
that were trained are skipped in the sampler; the random state is restored; `ReduceLROnPlateau` is
updated at the end of a resumed epoch; an early stop is kept.

Two things differ from an undisturbed run in the epoch of a recovery: metrics that Lightning
averages over an epoch of training (`self.log(..., on_epoch=True)` in `training_step`) cover the
batches since the recovery, and random transforms of the dataset draw other numbers. So that the
first does not change the training, a scheduler or callback that monitors such a metric raises an
error.

The module and the Trainer are those of the script in every generation. Attributes of the module
that are neither parameters, buffers nor metrics, and that `on_save_checkpoint` does not save, keep
the value that they had when the loop was left, which may be in the middle of a step.
"""

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.pytorch import Callback
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.launcher import _Launcher
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from lightning_utilities.core.rank_zero import rank_zero_only as utilities_rank_zero_only
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler
from torchmetrics import Metric

from strata.checkpoint.read.weight_names import Rename
from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.interrupts import GenerationChanged
from strata.sdk.run import Run
from strata.sdk.state.initial_weights import initial_weights
from strata.torch.loop_supervisor import LoopSupervisor, copied, saved_buffers
from strata.torch.unsupported import refusal, require_resumable_monitors, require_supported

RESUME_PATH = "strata-checkpoint"
"""The `ckpt_path` for which the strategy returns the state of the run."""


class LightningStrategy(DDPStrategy):
    """Lightning's DDP strategy among the workers of a run.

    `from_`, `strict` and `rename` are those of `run.restore`: a new task starts with these weights
    of the module. `options` are those of `DistributedDataParallel`, such as
    `find_unused_parameters`.
    """

    def __init__(
        self,
        run: Run,
        *,
        from_: str | os.PathLike[str] | None = None,
        strict: bool = True,
        rename: Rename | None = None,
        **options: Any,
    ) -> None:
        self.run = run
        initial = initial_weights(from_, strict, rename)
        self.supervisor = LoopSupervisor(run, "lightning", group_of_one=True, initial=initial)
        super().__init__(cluster_environment=_Workers(self.supervisor), **options)
        if not options.get("broadcast_buffers", True):
            raise refusal("broadcast_buffers=False")
        self.resumed: dict[str, Any] = {}

    @property
    def root_device(self) -> torch.device:
        """The device of this worker, which may see no devices but its own."""
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank % len(self.parallel_devices)]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """This worker's part of every dataset."""
        return {"num_replicas": self.run.world_size, "rank": self.run.rank}

    def set_world_ranks(self) -> None:
        """Take the rank of this generation."""
        for only in (rank_zero_only, utilities_rank_zero_only):
            setattr(only, "rank", self.run.rank)  # noqa: B010

    def load_checkpoint(self, checkpoint_path: Any, weights_only: Any = None) -> dict[str, Any]:
        """The state of the run, or of a file."""
        if checkpoint_path == RESUME_PATH:
            checkpoint: dict[str, Any] = self.resumed["checkpoint"]
            return checkpoint
        return super().load_checkpoint(checkpoint_path, weights_only)

    def process_dataloader(self, dataloader: object) -> object:
        """Skip the batches of the epoch that were trained before a resume."""
        module = self.lightning_module
        trainer = None if module is None else module.trainer
        if trainer is None or trainer.state.fn != TrainerFn.FITTING or not trainer.training:
            return dataloader
        sampler = _require_exact(dataloader, self.run)
        sampler.set_epoch(trainer.fit_loop.epoch_progress.current.processed)
        inner = dataloader.batch_sampler  # type: ignore[attr-defined]
        if isinstance(inner, _Skipping):
            inner = inner.inner
        skipping = _Skipping(inner, self.resumed.get("batches", 0))
        object.__setattr__(dataloader, "batch_sampler", skipping)  # a DataLoader refuses setattr
        return dataloader

    def _configure_launcher(self) -> None:
        self._launcher = _Relaunching(self)


class _Workers(ClusterEnvironment):
    """The workers of a run as Lightning sees them; the process group already exists."""

    def __init__(self, supervisor: LoopSupervisor) -> None:
        self._supervisor = supervisor
        self._run = supervisor.run

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        raise NotAllowedNow(
            "Strata forms the process group", hint="leave out code that forms another one"
        )

    @property
    def main_port(self) -> int:
        raise NotAllowedNow(
            "Strata forms the process group", hint="leave out code that forms another one"
        )

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._run.world_size

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return self._run.rank

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return self._supervisor.local_rank

    def node_rank(self) -> int:
        return 0


class _Relaunching(_Launcher):
    """Calls `fit` again after each change of membership."""

    def __init__(self, strategy: LightningStrategy) -> None:
        self._strategy = strategy

    @property
    def is_interactive_compatible(self) -> bool:
        return False

    def kill(self, signum: int | signal.Signals) -> None:
        """Do nothing: Lightning started no processes."""

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run one of the Trainer's functions; `fit` in one generation after the other."""
        trainer = kwargs.pop("trainer")
        if trainer.state.fn != TrainerFn.FITTING:
            self._strategy.supervisor.require_group()
            return function(*args, **kwargs)
        model, train, valid, data, path, *rest = args
        if path is not None:
            raise InvalidArgument(
                "trainer.fit got a ckpt_path, but a run resumes from its own checkpoints",
                hint="leave ckpt_path out; LightningStrategy(run, from_=...) starts from weights",
            )
        strategy = self._strategy
        follower = _FitCallback(strategy, model)
        trainer.callbacks.append(follower)
        # Lightning would answer SIGTERM with a collective inside the signal handler.
        trainer._signal_connector._sigterm_notifier_fn = _ignore

        def attempt(tree: dict[str, Any]) -> Any:
            follower.begin(trainer, tree)
            strategy.supervisor.load_initial(model)
            try:
                return function(model, train, valid, data, RESUME_PATH if tree else None, *rest)
            except (RuntimeError, GenerationChanged):
                trainer._teardown()
                raise

        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*your dataloader is not resumable.*")
                return strategy.supervisor.follow(attempt)
        finally:
            trainer.callbacks.remove(follower)


def _ignore(number: int, frame: object) -> None:
    """Leave SIGTERM to the run, which saves at a step that all workers agree on."""


class _Skipping(BatchSampler):
    """A batch sampler whose next pass leaves out its first batches."""

    def __init__(self, inner: BatchSampler, skip: int) -> None:
        self.inner, self._skip = inner, skip
        self.sampler, self.batch_size = inner.sampler, inner.batch_size
        self.drop_last = inner.drop_last

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: a DataLoader with worker processes makes an iterator that it never reads.
        skip, self._skip = self._skip, 0
        yield from islice(self.inner, skip, None)

    def __len__(self) -> int:
        return len(self.inner)


class _FitCallback(Callback):
    """Reports complete steps of a fit to the supervisor."""

    def __init__(self, strategy: LightningStrategy, model: torch.nn.Module) -> None:
        self._strategy = strategy
        self._supervisor = strategy.supervisor
        self._modes = {each: each.training for each in model.modules()}
        self._buffers: dict[str, torch.Tensor] = {}
        self._resumed = False
        self._validated = False
        self._metrics_known = 0
        self._loss: Any = None

    def begin(self, trainer: Any, tree: dict[str, Any]) -> None:
        """Prepare the Trainer for a fit that resumes from this state; an empty state is the
        beginning.
        """
        for module, training in self._modes.items():
            module.training = (
                training  # a fit that was left during validation left the modules in eval mode
            )
            if isinstance(module, Metric):
                module.reset()
        trainer.fit_loop = _fresh_loop(trainer)
        self._strategy.resumed = tree
        self._resumed = bool(tree)
        self._validated, self._loss = False, None
        trainer.state.fn, trainer.state.status = TrainerFn.FITTING, TrainerStatus.RUNNING
        trainer.training = True
        trainer.should_stop = bool(tree.get("finished"))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        require_supported(trainer)
        self._buffers = saved_buffers(pl_module)
        resumed = self._strategy.resumed
        checkpoint = resumed.get("checkpoint", {})
        loops = checkpoint.get("loops") or trainer._checkpoint_connector._get_loops_state_dict()
        place = (loops, resumed.get("batches", 0), False)
        self._supervisor.resumed(self._reader(trainer, place, copied(self._buffers)))
        if not self._resumed:
            self._supervisor.store_random()
        self._strategy.resumed = {}

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._resumed:
            self._supervisor.restore_random()
            self._resumed = False
            # Lightning would not update plateau schedulers at the end of this epoch.
            trainer.fit_loop._restarting = False
        elif trainer.global_step > self._supervisor.run.steps:
            self._complete(trainer, batch_idx)
        self._validated = False

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._supervisor.begin_update()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if len(trainer._results) != self._metrics_known:
            require_resumable_monitors(trainer)
            self._metrics_known = len(trainer._results)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._validated = not trainer.sanity_checking

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step > self._supervisor.run.steps:
            self._complete(trainer, 0, finished=True)

    def _complete(self, trainer: Any, batches: int, *, finished: bool = False) -> None:
        buffers = self._supervisor.shared_buffers(self._buffers)
        loops = trainer._checkpoint_connector._get_loops_state_dict()
        if not finished:
            _place_between_batches(loops["fit_loop"], batches, self._validated)
        self._supervisor.complete(
            trainer.global_step,
            self._reader(trainer, (loops, batches, finished), buffers),
            loss=self._loss,
            epoch=int(trainer.fit_loop.epoch_progress.current.processed),
            metrics=_logged(trainer) if self._validated else {},
        )

    def _reader(
        self,
        trainer: Any,
        place: tuple[dict[str, Any], int, bool],
        buffers: dict[str, torch.Tensor],
    ) -> Callable[[], dict[str, Any]]:
        loops, batches, finished = place

        def read() -> dict[str, Any]:
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            checkpoint["loops"] = loops
            checkpoint["state_dict"] = {**checkpoint["state_dict"], **buffers}
            return {"checkpoint": checkpoint, "batches": batches, "finished": finished}

        return read


def _logged(trainer: Any) -> dict[str, Any]:
    """The last metrics that the module logged, except for those that a step has by itself."""
    return {
        name: value
        for name, value in trainer.callback_metrics.items()
        if name not in ("loss", "epoch")
    }


def _fresh_loop(trainer: Any) -> _FitLoop:
    """The Trainer's fit loop as before a fit: one that was left keeps parts of metrics."""
    old = trainer.fit_loop
    loop = _FitLoop(trainer, min_epochs=old.min_epochs, max_epochs=old.max_epochs)
    loop.epoch_loop = _TrainingEpochLoop(trainer, min_steps=old.min_steps, max_steps=old.max_steps)
    return loop


def _place_between_batches(fit_loop: dict[str, Any], batches: int, validated: bool) -> None:
    """Set the progress to what it is between two batches: after `batches` of this epoch.

    It was read when the next batch had begun. Lightning resumes from progress as it is inside its
    hooks; from this one it resumes with the next batch, or with the next epoch if there is none.
    """
    progress = fit_loop["epoch_loop.batch_progress"]
    progress["is_last_batch"] = False
    for counts in (progress["total"], progress["current"]):
        for name in counts:
            counts[name] = counts["completed"]
    if batches == 0:
        for counts in fit_loop["epoch_progress"]["total"], fit_loop["epoch_progress"]["current"]:
            for name in counts:
                counts[name] = counts["processed"]
    elif validated:
        fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1  # counted when it resumes


def _require_exact(dataloader: object, run: Run) -> DistributedSampler[Any]:
    """The sampler of a training dataloader, if its order can be resumed."""
    if not isinstance(dataloader, DataLoader) or type(dataloader) is not DataLoader:
        raise refusal(f"a training dataloader of type {type(dataloader).__name__}")
    if isinstance(dataloader.dataset, IterableDataset):
        raise refusal("an IterableDataset")
    batches = dataloader.batch_sampler
    if type(batches) not in (BatchSampler, _Skipping):
        raise refusal(f"a batch sampler of type {type(batches).__name__}")
    sampler = batches.sampler
    if type(sampler) is not DistributedSampler:
        raise refusal(f"a training sampler of type {type(sampler).__name__}")
    if (sampler.rank, sampler.num_replicas) != (run.rank, run.world_size):
        raise refusal(f"a DistributedSampler for rank {sampler.rank} of {sampler.num_replicas}")
    return sampler
