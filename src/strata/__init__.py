"""Strata: a distributed-training runtime that remembers everything."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "BarrierResult",
    "DatasetRegistry",
    "Fact",
    "GenerationChanged",
    "Recovery",
    "Run",
    "ShardInfo",
    "ShardManager",
    "StopRequested",
    "StrataError",
    "TrainingOrchestrator",
    "WorkerConfig",
    "__version__",
    "join",
]

if TYPE_CHECKING:
    from strata.errors import StrataError
    from strata.sdk.barriers import BarrierResult
    from strata.sdk.facts import Fact
    from strata.sdk.membership import Recovery
    from strata.sdk.orchestrator import TrainingOrchestrator, WorkerConfig
    from strata.sdk.registry import DatasetRegistry, ShardManager
    from strata.sdk.run import Run, join
    from strata.sdk.shards import ShardInfo
    from strata.sdk.signals import GenerationChanged, StopRequested

# Where each public name lives. They are imported when first used, since the SDK takes longer to
# import than most commands take to run.
_HOMES = {
    "BarrierResult": "strata.sdk.barriers",
    "DatasetRegistry": "strata.sdk.registry",
    "Fact": "strata.sdk.facts",
    "GenerationChanged": "strata.sdk.signals",
    "Recovery": "strata.sdk.membership",
    "Run": "strata.sdk.run",
    "ShardInfo": "strata.sdk.shards",
    "ShardManager": "strata.sdk.registry",
    "StopRequested": "strata.sdk.signals",
    "StrataError": "strata.errors",
    "TrainingOrchestrator": "strata.sdk.orchestrator",
    "WorkerConfig": "strata.sdk.orchestrator",
    "join": "strata.sdk.run",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
