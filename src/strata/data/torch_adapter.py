"""PyTorch: the same batches through `torch.utils.data.DataLoader`.

`StepDataset` is a map-style dataset with `__getitems__`, so that a batch is gathered at once;
`StepSampler` is a batch sampler that says which samples each step has. The order is the sampler's,
so it does not depend on `num_workers`. `loader` puts the two together and counts the steps handed
out, which is its whole state. `Loading` does the same for a run, as an engine of `run.batches`:

    for batch in run.batches("imagenet-1k", 32, epochs=3, engine=Loading(num_workers=4)):

When the lanes change, what `DataLoader` has read ahead is let go and read anew; worker processes
stay if `persistent_workers` is set. torch is imported only where a `DataLoader` is made.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from strata.core.order import digest
from strata.data.dataset import OnError
from strata.data.per_lane import Transform, stateless
from strata.data.steps import Ordered, Readable, require_same_order
from strata.data.streams import Taken
from strata.errors import InvalidArgument, Unavailable


class StepDataset:
    """Samples by number; a list of numbers gives one batch of columns."""

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
        return {name: values[0] for name, values in self.__getitems__([sample]).items()}

    def __getitems__(self, samples: Sequence[int]) -> Any:
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
        order.positions(0, 0, lanes)  # refuses lanes that do not exist
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
        """Takes effect when the loader is next iterated."""
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
    **options: Any,
) -> StepLoader:
    """A loader of tensors; `options` go to `DataLoader` (`num_workers`, `pin_memory`, …)."""
    samples = StepDataset(dataset, order.total_samples, columns)
    sampler = StepSampler(order, lanes, start_step, stop_step)
    return StepLoader(sampler, data_loader(samples, sampler, options))


def data_loader(samples: StepDataset, sampler: StepSampler, options: dict[str, Any]) -> Any:
    """A `DataLoader` whose batches are the sampler's steps, as tensors."""
    try:
        torch = import_module("torch")
        data = import_module("torch.utils.data")
    except ImportError as error:
        raise Unavailable("PyTorch is not installed", hint="pip install torch") from error
    collate = {"collate_fn": Collate(torch.from_numpy), **options}
    return data.DataLoader(samples, batch_sampler=sampler, **collate)


class Loading:
    """An engine for `run.batches`; the options are those of `DataLoader`."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def __call__(
        self,
        dataset: Readable,
        order: Any,
        lanes: Sequence[int] | None = None,
        start_step: int = 0,
        stop_step: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        on_error: OnError = "raise",
        contents: bool = False,
        **_: object,
    ) -> "LoaderStream":
        if on_error != "raise" or contents:
            raise InvalidArgument(
                "a DataLoader neither skips damaged samples nor digests what it reads",
                hint='use on_error="raise" and contents=False, or no engine',
            )
        samples = StepDataset(dataset, order.total_samples, columns, transform)
        sampler = StepSampler(order, lanes, start_step, stop_step)
        return LoaderStream(sampler, data_loader(samples, sampler, self._options))


class LoaderStream:
    """The batches of a run through a `DataLoader`; for the training thread."""

    def __init__(self, sampler: StepSampler, loader: Any) -> None:
        self.order, self.step = sampler.order, sampler.step
        self.taken: Taken | None = None
        self._sampler, self._loader = sampler, loader
        self._iterator: Iterator[Any] | None = None

    @property
    def reading(self) -> int:
        """The step that is handed out next; what its processes read ahead is not known."""
        return self.step

    def __next__(self) -> Any:
        if self._iterator is None:
            self._sampler.step = self.step
            self._iterator = iter(self._loader)
        batch = next(self._iterator)
        positions = self.order.positions(self.step, self.step + 1, self._sampler.lanes)[0]
        samples = self.order.samples(positions)
        self.taken = Taken(self.step, samples, digest(positions, samples))
        self.step += 1
        return batch

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None:
        """Other lanes from the next step on; what was read for others is let go."""
        if lanes != self._sampler.lanes or from_step != self.step:
            self.order.positions(0, 0, lanes)  # refuses lanes that do not exist
            self._sampler.lanes = lanes
            self.seek(from_step)

    def seek(self, step: int) -> None:
        """Goes on at another step, back or forth."""
        self.step, self._iterator = step, None

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "order": msgspec.to_builtins(self.order.spec)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where a state was taken; refused if the order is another one."""
        require_same_order(self.order, state)
        self.seek(int(state["step"]))

    def close(self) -> None:
        """Lets the worker processes end."""
        self._iterator = None
        self._loader = ()


class Collate:
    """Turns columns of numbers into tensors and leaves objects as lists; can be sent to workers."""

    def __init__(self, to_tensor: Any) -> None:
        self._to_tensor = to_tensor

    def __call__(self, batch: Any) -> Any:
        if not isinstance(batch, dict):
            return batch  # what a transform made of it
        return {name: self._value(values) for name, values in batch.items()}

    def _value(self, values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return values
        return list(values) if values.dtype.hasobject else self._to_tensor(values)
