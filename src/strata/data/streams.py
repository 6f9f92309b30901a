"""What reads the batches of a run: `Batches`, or another engine with the same verbs.

An engine is called as `Batches` is, and gives a stream: the batches of steps, in order, whose lanes
may change and which can go to any step. `strata.torch.Loading` is one over `DataLoader`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from strata.core.order import Integers
from strata.data.steps import Ordered


class Taken(NamedTuple):
    """What was handed out last: which samples of the dataset, eight bytes for them, and eight for
    their content if that was asked for, else 0."""

    step: int
    samples: Integers
    digest: int
    content: int = 0


class Stream(Protocol):
    """Batches of steps; `step` comes next, and `reading` is being read ahead."""

    @property
    def order(self) -> Ordered: ...

    @property
    def step(self) -> int: ...

    @property
    def reading(self) -> int: ...

    @property
    def taken(self) -> Taken | None: ...

    def __next__(self) -> Any: ...

    def set_lanes(self, lanes: Sequence[int] | None, from_step: int) -> None: ...

    def seek(self, step: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


Engine: TypeAlias = Callable[..., Stream]
