"""Facts with numbers that the GPU has not computed yet.

Reading a number from a GPU waits until the GPU has computed it. Meanwhile the GPU gets no new work,
so a script that logs its loss in every step would drain the GPU's queue in every step. Therefore
`step.log` only starts a copy of the number to pinned host memory, and a CUDA event signals the end
of the copy.

The fact is emitted at once, so it has its position and time among the other events. It is packed
when its numbers are known. The training thread waits for them when the next step is counted: then
the GPU still has a whole step of queued work.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, SupportsFloat

from strata.core.events import Fact
from strata.errors import InvalidArgument
from strata.sdk.record.logged_media import Media

Make = Callable[[float | None, dict[str, float]], Fact]
"""Makes a fact from a loss and other metrics."""


class LateNumber(Protocol):
    """A number that may not be known yet; `float` waits for it."""

    def ready(self) -> bool: ...

    def __float__(self) -> float: ...


class DeviceNumber:
    """The value, at the time of creation, of a one-element tensor on a GPU."""

    def __init__(self, tensor: Any) -> None:
        torch = sys.modules["torch"]
        with torch.cuda.device(tensor.device):
            self._host = torch.empty((), dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def ready(self) -> bool:
        """Whether the copy is done; does not wait."""
        return bool(self._copied.query())

    def __float__(self) -> float:
        self._copied.synchronize()
        return float(self._host)


def number_of(value: Any) -> float | LateNumber:
    """A number, or the started copy of a number on a GPU."""
    if getattr(value, "is_cuda", False) and value.numel() == 1:
        return DeviceNumber(value)
    detach = getattr(value, "detach", None)  # PyTorch warns about tensors with a graph
    return float(value if detach is None else detach())


def numbers_of(
    metrics: Mapping[str, Any], media: dict[str, Media] | None = None
) -> dict[str, SupportsFloat]:
    """The numbers of some metrics by name; raises if one is not a number.

    Images, texts and histograms are put into `media`, if that is given.
    """
    numbers: dict[str, SupportsFloat] = {}
    for name, value in metrics.items():
        try:
            numbers[name] = number_of(value)
        except (TypeError, ValueError) as error:
            if media is not None and isinstance(value, Media):
                media[name] = value
                continue
            raise InvalidArgument(
                f"metric {name!r} is not a number: {error}",
                hint="log numbers, tensors with one element, strata.Image, strata.Text or "
                "strata.Histogram",
            ) from error
    return numbers


class LateFact:
    """A fact with numbers that may not be known yet. `fact` has the known ones."""

    def __init__(
        self, make: Make, loss: SupportsFloat | None, metrics: Mapping[str, SupportsFloat]
    ) -> None:
        self._make, self._loss, self._metrics = make, loss, metrics
        self._settled = False
        known = {name: float(each) for name, each in metrics.items() if not _is_late(each)}
        self.fact = make(None if loss is None or _is_late(loss) else float(loss), known)
        self.event: tuple[Any, ...] = ()

    def settle(self, *, wait: bool) -> bool:
        """Complete the fact; False if a number is not known yet and `wait` is False.

        If the device has failed, the fact stays without its numbers.
        """
        if self._settled:
            return True
        try:
            if not wait and not all(map(_is_ready, (self._loss, *self._metrics.values()))):
                return False
            loss = None if self._loss is None else float(self._loss)
            metrics = {name: float(each) for name, each in self._metrics.items()}
            self.fact = self._make(loss, metrics)
        except RuntimeError:
            pass
        self._settled = True
        return True


def fact_with_numbers(
    make: Make, loss: SupportsFloat | None, metrics: Mapping[str, SupportsFloat]
) -> Fact | LateFact:
    """The fact of `make`, or a `LateFact` if a number is not known yet."""
    if any(_is_late(each) for each in (loss, *metrics.values())):
        return LateFact(make, loss, metrics)
    known = {name: float(each) for name, each in metrics.items()}
    return make(None if loss is None else float(loss), known)


def _is_late(value: Any) -> bool:
    return hasattr(value, "ready")


def _is_ready(value: Any) -> bool:
    return not _is_late(value) or value.ready()
