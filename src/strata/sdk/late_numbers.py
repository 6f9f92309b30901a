"""Numbers that a GPU has yet to compute, and facts that are recorded with them.

Reading a number from a GPU waits until the GPU has computed it. Until then the GPU gets no new
work, so a script that logs its loss in every step would run out of queued work in every step.
`step.log` therefore only starts a copy of the number to pinned host memory, and an event tells when
the copy is done.

The fact is emitted at once, so it has its place and its time among the other events. It is packed
when its numbers are known. The training thread waits for them when the next step is counted: then
the GPU still has a whole step of work.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, SupportsFloat

from strata.core.events import Fact

Make = Callable[[float | None, dict[str, float]], Fact]
"""Makes a fact of a loss and of other metrics."""


class LateNumber(Protocol):
    """A number that may not be known yet; `float` waits for it."""

    def ready(self) -> bool: ...

    def __float__(self) -> float: ...


class DeviceNumber:
    """The value of a tensor with one element on a GPU, as of the moment at which it is made."""

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
    """A number, or the copy of a number on a GPU, which has just begun."""
    if getattr(value, "is_cuda", False) and value.numel() == 1:
        return DeviceNumber(value)
    detach = getattr(value, "detach", None)  # PyTorch warns about tensors of a graph
    return float(value if detach is None else detach())


class LateFact:
    """A fact of which numbers are not known yet. `fact` has those that are known."""

    def __init__(
        self, make: Make, loss: SupportsFloat | None, metrics: Mapping[str, SupportsFloat]
    ) -> None:
        self._make, self._loss, self._metrics = make, loss, metrics
        self._settled = False
        known = {name: float(each) for name, each in metrics.items() if not _is_late(each)}
        self.fact = make(None if loss is None or _is_late(loss) else float(loss), known)
        self.event: tuple[Any, ...] = ()

    def settle(self, *, wait: bool) -> bool:
        """Complete the fact; False when a number is not known yet and this does not wait for it.

        When the device has failed, its numbers will never be known, and the fact stays without.
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
    """The fact that `make` returns, or one that is completed later if a number is late."""
    if any(_is_late(each) for each in (loss, *metrics.values())):
        return LateFact(make, loss, metrics)
    known = {name: float(each) for name, each in metrics.items()}
    return make(None if loss is None else float(loss), known)


def _is_late(value: Any) -> bool:
    return hasattr(value, "ready")


def _is_ready(value: Any) -> bool:
    return not _is_late(value) or value.ready()
