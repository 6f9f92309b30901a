"""Strata: a distributed-training runtime that remembers everything."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "AsyncCheckpointWriter",
    "BarrierResult",
    "Batches",
    "CheckpointInfo",
    "CheckpointManager",
    "DatasetRegistry",
    "Fact",
    "GenerationChanged",
    "LocalSteps",
    "Recovery",
    "Run",
    "ShardInfo",
    "ShardManager",
    "Sharded",
    "StopRequested",
    "StorageBackend",
    "StrataError",
    "TrainingOrchestrator",
    "WorkerConfig",
    "__version__",
    "fact",
    "join",
    "load",
    "open_arrays",
    "open_dataset",
    "open_source",
]

if TYPE_CHECKING:
    from strata.checkpoint.format import CheckpointInfo
    from strata.checkpoint.loading import load
    from strata.checkpoint.manager import CheckpointManager
    from strata.checkpoint.sharded import Sharded
    from strata.checkpoint.writer import AsyncCheckpointWriter
    from strata.data.batches import Batches
    from strata.data.dataset import open_arrays, open_dataset, open_source
    from strata.errors import StrataError
    from strata.sdk.barriers import BarrierResult
    from strata.sdk.kinds import Fact, fact
    from strata.sdk.local_steps import LocalSteps
    from strata.sdk.membership import Recovery
    from strata.sdk.orchestrator import TrainingOrchestrator, WorkerConfig
    from strata.sdk.registry import DatasetRegistry, ShardManager
    from strata.sdk.run import Run, join
    from strata.sdk.shards import ShardInfo
    from strata.sdk.signals import GenerationChanged, StopRequested
    from strata.storage.base import StorageBackend

# Where each public name lives. They are imported when first used, since the SDK takes longer to
# import than most commands take to run.
_HOMES = {
    "AsyncCheckpointWriter": "strata.checkpoint.writer",
    "BarrierResult": "strata.sdk.barriers",
    "Batches": "strata.data.batches",
    "CheckpointInfo": "strata.checkpoint.format",
    "CheckpointManager": "strata.checkpoint.manager",
    "DatasetRegistry": "strata.sdk.registry",
    "Fact": "strata.sdk.kinds",
    "GenerationChanged": "strata.sdk.signals",
    "LocalSteps": "strata.sdk.local_steps",
    "Recovery": "strata.sdk.membership",
    "Run": "strata.sdk.run",
    "ShardInfo": "strata.sdk.shards",
    "ShardManager": "strata.sdk.registry",
    "Sharded": "strata.checkpoint.sharded",
    "StopRequested": "strata.sdk.signals",
    "StorageBackend": "strata.storage.base",
    "StrataError": "strata.errors",
    "TrainingOrchestrator": "strata.sdk.orchestrator",
    "WorkerConfig": "strata.sdk.orchestrator",
    "fact": "strata.sdk.kinds",
    "join": "strata.sdk.run",
    "load": "strata.checkpoint.loading",
    "open_arrays": "strata.data.dataset",
    "open_dataset": "strata.data.dataset",
    "open_source": "strata.data.dataset",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
