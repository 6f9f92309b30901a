"""The batches of a torch Dataset in a run: `collate_fn([dataset[i] for i in samples])`, by step.

    for batch in run.loader(train_set, batch_size=32, collate_fn=pad, num_workers=2):

`DataLoader` is asked for whole steps, one at a time, as in `loader_engine`: a worker process reads
the samples of this worker's lanes, collates them, and sends the batch together with what is
recorded about it.

Random numbers of `__getitem__` depend only on the sample's position (see `map_dataset`). Those of
`collate_fn` depend on the first position of this worker's share of the step: they are the same for
any `num_workers`, but not for another division of the step among workers, since then `collate_fn`
gets other samples. Draw in `__getitem__` to be independent of the division.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strata.core.order import digest
from strata.data.reading.lane_transforms import Transform
from strata.data.reading.step_reader import OnSkip, Ordered
from strata.data.source_dataset import OnError, SkippedRow, skipping
from strata.data.torch.loader_adapter import data_loader, import_torch
from strata.data.torch.loader_engine import LoadedStep, LoaderStream, StepRequests, unchanged
from strata.data.torch.map_dataset import TorchDataset, TorchSamples, error_line
from strata.data.torch.sample_seeds import restored_generators, seed_generators
from strata.errors import Corrupt, InvalidArgument, StrataError

Collate = Callable[[list[Any]], Any]
WorkerInit = Callable[[int], object]


class SampleLoading:
    """An engine that reads a `TorchDataset`; the options are those of `DataLoader`."""

    def __init__(
        self,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        *,
        timeout: float = 0,
        worker_init_fn: WorkerInit | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if collate_fn is not None and not callable(collate_fn):
            raise InvalidArgument(
                f"collate_fn is {collate_fn!r:.80}",
                hint="give a function that turns a list of samples into a batch",
            )
        if not isinstance(num_workers, int) or num_workers < 0:
            raise InvalidArgument(
                f"num_workers is {num_workers!r:.80}",
                hint="give the number of reading processes; 0 reads in the training process",
            )
        if not num_workers:
            needing = {
                "timeout": timeout,
                "multiprocessing_context": multiprocessing_context,
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers,
            }
            for name, value in needing.items():
                if value:
                    raise InvalidArgument(
                        f"{name} is {value!r:.80}, but there are no worker processes",
                        hint="give num_workers=1 or more",
                    )
        self.num_workers = num_workers
        self._collate = collate_fn
        self._worker_init = worker_init_fn
        self._processes: dict[str, Any] = {"num_workers": num_workers}
        if num_workers:
            self._processes |= {
                "timeout": timeout,
                "multiprocessing_context": multiprocessing_context,
            }
        self._ahead: dict[str, Any] = {
            "pin_memory": pin_memory,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }

    def __call__(
        self,
        dataset: TorchDataset,
        order: Ordered,
        lanes: Sequence[int] | None = None,
        start_step: int = 0,
        stop_step: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        on_error: OnError = "raise",
        on_skip: OnSkip | None = None,
        contents: bool = False,
        **_: object,
    ) -> LoaderStream:
        require_supported(dataset, TorchDataset, transform=transform, contents=contents)
        dataset.checked_columns(columns)
        on_skip = skipping(on_error, on_skip)
        collate = self._collate or import_torch("torch.utils.data").default_collate
        requests = StepRequests(order, lanes, start_step, stop_step)
        loader = data_loader(
            _SampleSteps(dataset, order, collate, skips=on_skip is not None),
            batch_size=None,
            sampler=requests,
            collate_fn=unchanged,
            **self.process_options(),
        )
        return LoaderStream(dataset, requests, loader, on_skip, None)

    def process_options(self) -> dict[str, Any]:
        """Options of a `DataLoader` that reads steps."""
        return {**self._processes, **self._ahead, "worker_init_fn": _WorkerInit(self._worker_init)}

    def probe_options(self) -> dict[str, Any]:
        """Options of a `DataLoader` that reads single samples as this engine's processes would."""
        return {
            **self._processes,
            "num_workers": min(1, self.num_workers),
            "worker_init_fn": _WorkerInit(self._worker_init),
        }


class _SampleSteps:
    """The dataset of the `DataLoader`, with a step as an item; used in the worker processes."""

    def __init__(
        self, dataset: TorchDataset, order: Ordered, collate: Collate, *, skips: bool
    ) -> None:
        self._dataset, self._order, self._collate = dataset, order, collate
        self._skips = skips
        self.samples = dataset.samples

    def __getitem__(self, asked: tuple[int, Sequence[int] | None]) -> LoadedStep:
        step, lanes = asked
        positions = self._order.positions(step, step + 1, lanes)[0]
        samples = self._order.samples(positions)
        skipped: list[SkippedRow] = []
        batch, failure = None, None
        try:
            with restored_generators():
                batch = self._batch(step, positions, samples, skipped)
        except StrataError as error:
            failure = error
        return LoadedStep(
            batch=batch,
            samples=samples,
            digest=digest(positions, samples),
            content=0,
            skipped=skipped,
            error=failure,
        )

    def _batch(
        self,
        step: int,
        positions: np.ndarray[Any, Any],
        samples: np.ndarray[Any, Any],
        skipped: list[SkippedRow],
    ) -> Any:
        items = self._dataset.read(positions, samples, skipped.append if self._skips else None)
        return collated(self._dataset, self._order, self._collate, step, positions, items)


def collated(
    dataset: TorchSamples,
    order: Ordered,
    collate: Collate,
    step: int,
    positions: np.ndarray[Any, Any],
    items: list[Any],
) -> Any:
    """The batch of this worker's samples of a step, after they were read."""
    if not len(positions):
        raise InvalidArgument(
            f"dataset {dataset.name!r}: this worker has no samples in step {step}, since there are "
            f"more workers than lanes ({order.lanes})",
            hint="give a larger batch_size, or run fewer workers",
        )
    if not items:
        raise Corrupt(
            f"dataset {dataset.name!r}: no sample of this worker's step {step} can be read"
        )
    seed_generators(dataset.words(positions[:1], "collate")[0])
    try:
        return collate(items)
    except MemoryError:
        raise
    except Exception as error:
        failure = InvalidArgument(
            f"dataset {dataset.name!r}: collate_fn failed in step {step} for samples "
            f"{_shown(order.samples(positions))}: {error_line(error)}",
            hint="give a collate_fn that takes these samples, for example one that pads them",
        )
        failure.add_note("".join(traceback.format_exception(error)))
        raise failure from error


class _WorkerInit:
    """Called in each worker process: sets `get_worker_info().dataset` to the user's Dataset."""

    def __init__(self, chosen: WorkerInit | None) -> None:
        self._chosen = chosen

    def __call__(self, number: int) -> None:
        info = import_torch("torch.utils.data").get_worker_info()
        # WorkerInfo does not allow a plain assignment.
        object.__setattr__(info, "dataset", info.dataset.samples)
        if self._chosen is not None:
            self._chosen(number)


def require_supported(
    dataset: TorchSamples,
    kind: type[TorchSamples],
    *,
    transform: Transform | None,
    contents: bool,
) -> None:
    """Raise for what an engine for torch Datasets cannot read or cannot do."""
    if not isinstance(dataset, kind):
        raise InvalidArgument(
            f"the engine reads a {kind.__name__}, not a {type(dataset).__name__}",
            hint="open the dataset with plan_loader, which chooses the engine",
        )
    if transform is not None:
        raise InvalidArgument(
            f"dataset {dataset.name!r} is a torch Dataset, which takes no transform",
            hint="transform in __getitem__ or in collate_fn",
        )
    if contents:
        raise InvalidArgument(
            f"dataset {dataset.name!r}: contents=True needs data that the audit can read again, "
            "and it cannot call a torch Dataset",
            hint="leave contents out; which samples a step trained is recorded anyway",
        )


def _shown(samples: np.ndarray[Any, Any]) -> str:
    more = f" and {len(samples) - 8} more" if len(samples) > 8 else ""
    return f"{samples[:8].tolist()}{more}"
