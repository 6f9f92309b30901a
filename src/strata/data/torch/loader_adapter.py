"""PyTorch: the same batches through `torch.utils.data.DataLoader`.

`StepDataset` is a map-style dataset with `__getitems__`, so that a batch is gathered at once;
`StepSampler` is a batch sampler that returns the samples of each step. The order is the sampler's,
so it does not depend on `num_workers`. `loader` combines the two and counts the returned steps,
which is its whole state. For a run, see `loader_engine`. torch is imported only where a
`DataLoader` is created.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from strata.data.formats.source import Columns
from strata.data.reading.lane_transforms import Transform, stateless
from strata.data.reading.step_reader import Ordered, Readable, require_same_order
from strata.errors import InvalidArgument, Unavailable

_DECIDED = {"batch_sampler", "batch_size", "drop_last", "sampler", "shuffle"}


class Gathered:
    """A batch by columns (`batch["x"]`), which `DataLoader`'s own collation reads row by row."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, which: str | int) -> Any:
        if isinstance(which, str):
            return self.columns[which]
        return {name: values[which] for name, values in self.columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))


class StepDataset:
    """Samples by number; a list of numbers returns one batch of columns."""

    def __init__(
        self,
        dataset: Readable,
        total: int,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
    ) -> None:
        self._dataset, self._total, self._transform = dataset, total, stateless(transform)
        self._columns = dataset.checked_columns(columns)

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, sample: int) -> dict[str, Any]:
        return {name: values[0] for name, values in self._batch([sample]).items()}

    def __getitems__(self, samples: Sequence[int]) -> Any:
        batch = self._batch(samples)
        return Gathered(batch) if isinstance(batch, dict) else batch

    def _batch(self, samples: Sequence[int]) -> Any:
        rows = np.asarray(samples, np.int64)
        batch = self._dataset.gather(rows, self._columns, None)[0]
        return batch if self._transform is None else self._transform(batch)


class StepSampler:
    """A batch sampler: the samples of one worker's lanes, a list for each step."""

    def __init__(
        self,
        order: Ordered,
        lanes: Sequence[int] | None = None,
        start_step: int = 0,
        stop_step: int | None = None,
    ) -> None:
        order.positions(0, 0, lanes)  # raises for lanes that do not exist
        self.order, self.lanes = order, lanes
        self.step, self.stop_step = start_step, stop_step

    def __iter__(self) -> Iterator[list[int]]:
        step = self.step
        while self.stop_step is None or step < self.stop_step:
            positions = self.order.positions(step, step + 1, self.lanes)[0]
            yield self.order.samples(positions).tolist()
            step += 1

    def __len__(self) -> int:
        if self.stop_step is None:
            raise TypeError("a sampler without stop_step has no length")
        return max(0, self.stop_step - self.step)


class StepLoader:
    """A `DataLoader` over steps, with `state_dict` and `load_state_dict`."""

    def __init__(self, sampler: StepSampler, loader: Any) -> None:
        self._sampler, self._loader = sampler, loader
        self.step = sampler.step

    def __iter__(self) -> Iterator[Any]:
        self._sampler.step = self.step
        for batch in self._loader:
            self.step += 1
            yield batch

    def __len__(self) -> int:
        return len(self._sampler)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "order": msgspec.to_builtins(self._sampler.order.spec)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes effect at the next iteration."""
        require_same_order(self._sampler.order, state)
        self.step = int(state["step"])


def loader(
    dataset: Readable,
    order: Any,
    lanes: Sequence[int] | None = None,
    start_step: int = 0,
    stop_step: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    transform: Transform | None = None,
    **options: Any,
) -> StepLoader:
    """A loader of tensors; `options` go to `DataLoader` (`num_workers`, `pin_memory`, …)."""
    samples = StepDataset(dataset, order.total_samples, columns, transform)
    sampler = StepSampler(order, lanes, start_step, stop_step)
    collated = {"collate_fn": collate(), **checked_loading(options)}
    return StepLoader(sampler, data_loader(samples, batch_sampler=sampler, **collated))


def checked_loading(options: dict[str, Any]) -> dict[str, Any]:
    """Options for `DataLoader`; raises for those that choose the samples of a batch."""
    taken = _DECIDED & options.keys()
    if taken:
        raise InvalidArgument(
            f"the option {min(taken)} cannot be set",
            hint="the order decides which samples a batch has; other options are allowed",
        )
    return options


def data_loader(samples: object, **options: Any) -> Any:
    """A `DataLoader`; raises if PyTorch is not installed."""
    torch = import_torch("torch")
    # `iter(DataLoader)` draws a seed. Drawn from the global generator, each resume and each change
    # of lanes would change the random numbers of the training script.
    own = torch.Generator().manual_seed(torch.initial_seed())
    return import_torch("torch.utils.data").DataLoader(samples, **{"generator": own, **options})


def pins(options: Mapping[str, Any]) -> bool:
    """Whether `DataLoader` would pin memory: requested, and a device is available."""
    available = import_torch("torch.accelerator").is_available
    return bool(options.get("pin_memory")) and bool(available())


def collate() -> "Collate":
    """The function that turns a batch into tensors."""
    return Collate(import_torch("torch").from_numpy)


def import_torch(name: str) -> Any:
    """A module of PyTorch; raises `Unavailable` with a hint if PyTorch is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise Unavailable("PyTorch is not installed", hint="pip install torch") from error


class Collate:
    """Turns columns of numbers into tensors and leaves objects as lists; can be pickled."""

    def __init__(self, to_tensor: Any) -> None:
        self._to_tensor = to_tensor

    def __call__(self, batch: Any) -> Any:
        if isinstance(batch, Gathered):
            batch = batch.columns
        if not isinstance(batch, dict):
            return batch  # the result of a transform
        return {name: self._value(values) for name, values in batch.items()}

    def _value(self, values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return values
        return list(values) if values.dtype.hasobject else self._to_tensor(values)
