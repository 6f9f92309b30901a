"""Lightning Fabric under Strata:

    with strata.join() as run:
        fabric = strata.torch.Fabric(run, precision="bf16-mixed")             # the changed line
        model, optimizer = fabric.setup(model, optimizer)
        run.restore(model=model, optimizer=optimizer)
        for epoch in run.epochs(3):
            for batch in run.loader(train_set, batch_size=32):
                with run.step():
                    fabric.backward(loss_of(model, batch))
                    optimizer.step()
                    optimizer.zero_grad()

The loops are those of the run, because Fabric does not know a script's loops and cannot resume
them. Fabric does its part in each worker: device placement, precision, clipping, `fabric.save` on
rank 0. The gradients are averaged by `data_parallel`, so that a lost worker costs one step.

`with fabric.no_backward_sync(model)` is `with step.accumulate()`. Methods that need the other
workers raise an error with an alternative.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric as PlainFabric
from lightning.fabric.strategies import Strategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl

from strata.errors import InvalidArgument
from strata.sdk.run import Run
from strata.torch.data_parallel import data_parallel
from strata.torch.unsupported import refuse_methods, refuse_options

OPTIONS = {
    "strategy": "data_parallel is the strategy; use strata.torch.Mesh for FSDP2",
    "devices": "a worker trains on one device; set --workers",
    "num_nodes": "a worker trains on one device; set --workers",
    "loggers": "record metrics with step.log",
    "plugins": "give precision= for mixed precision",
}
METHODS = {
    "setup_dataloaders": "read with run.loader(dataset, ...), which is not set up",
    "all_gather": "use run.average, or run.evaluate for metrics",
    "all_reduce": "use run.average, or run.evaluate for metrics",
    "broadcast": "use run.agree(value)",
    "barrier": "use run.barrier(name)",
    "rank_zero_first": "use run.barrier(name) and fabric.is_global_zero",
    "local_rank": "use fabric.global_rank",
    "node_rank": "use fabric.global_rank",
    "sharded_model": "use strata.torch.Mesh with FSDP2",
}


class Fabric(PlainFabric):
    """Fabric in one worker; the run joins the workers. `options` are Fabric's."""

    def __init__(self, run: Run, **options: Any) -> None:
        refuse_options("Fabric", options, OPTIONS)
        super().__init__(strategy=_OneWorker(run), devices=1, **options)
        self._run = run
        if getattr(self._precision, "scaler", None) is not None:
            raise InvalidArgument(
                f"Fabric under Strata does not support precision={options['precision']!r}: its "
                "scaler would not be part of the state",
                hint="use bf16-mixed, or a loop with your own GradScaler",
            )
        self.launch()

    def save(self, path: str | Path, state: dict[str, Any], filter: Any = None) -> None:
        """Write a file on rank 0; the others continue."""
        self._without_barrier(super().save, path, state, filter)

    def load(self, path: str | Path, *given: Any, **named: Any) -> Any:
        """Read a file, for example to start from its weights."""
        return self._without_barrier(super().load, path, *given, **named)

    def print(self, *values: Any, **named: Any) -> None:
        """Print on rank 0."""
        if self._run.rank == 0:
            print(*values, **named)

    def _without_barrier(self, act: Any, *given: Any, **named: Any) -> Any:
        """Call a method of Fabric that ends with a barrier, without the barrier."""
        self.__dict__["barrier"] = nullcontext
        try:
            return act(*given, **named)
        finally:
            del self.__dict__["barrier"]


class _OneWorker(Strategy):
    """One worker of a run as Fabric sees it."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self.parallel_devices: list[torch.device] = []
        self._backward_sync_control = _Accumulating(run)

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0]

    @property
    def is_global_zero(self) -> bool:
        return self._run.rank == 0

    @property
    def global_rank(self) -> int:
        return self._run.rank

    @property
    def world_size(self) -> int:
        return self._run.world_size

    def module_to_device(self, module: torch.nn.Module) -> None:
        module.to(self.root_device)

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Average the gradients of a module over the workers."""
        return data_parallel(self._run, module)

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        raise NotImplementedError  # Fabric.all_gather raises

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        raise NotImplementedError  # Fabric.all_reduce raises

    def barrier(self, name: str | None = None) -> None:
        raise NotImplementedError  # Fabric.barrier raises

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        raise NotImplementedError  # Fabric.broadcast raises


class _Accumulating(_BackwardSyncControl):
    """`fabric.no_backward_sync` as `step.accumulate`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def no_backward_sync(
        self, module: torch.nn.Module, enabled: bool
    ) -> AbstractContextManager[None]:
        step = self._run.present_step
        return step.accumulate() if enabled and step is not None else nullcontext()


refuse_methods(Fabric, METHODS)
