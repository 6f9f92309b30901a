"""`strata.fact`: user-defined facts, recorded with `run.emit` and readable without their class.

    @strata.fact
    class LossSpiked:
        step: int
        loss: float

    run.emit(LossSpiked(step=run.steps, loss=9.5))

The kind is recorded as `user.LossSpiked`, so it never collides with one of Strata's. Fields
that are tags (`step`, `batch`, `checkpoint`, …) can be searched for like those of any other kind.
"""

from typing import TypeVar, dataclass_transform

import msgspec

from strata.core.events import Fact as Fact
from strata.core.workers.worker_facts import USER_PREFIX

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True)
def fact(kind: type[Kind]) -> type[Kind]:
    """Turn a class with annotated fields into a kind of fact."""
    fields = [
        (name, hint, getattr(kind, name)) if hasattr(kind, name) else (name, hint)
        for name, hint in kind.__annotations__.items()
    ]
    made = msgspec.defstruct(
        kind.__name__,
        fields,
        bases=(Fact,),
        frozen=True,
        tag=f"{USER_PREFIX}{kind.__name__}",
        module=kind.__module__,
        namespace={"__doc__": kind.__doc__},
    )
    return made  # type: ignore[return-value]
