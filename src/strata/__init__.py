"""Strata: a distributed-training runtime that records everything."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Older releases can parse this module, so that they print this error and no SyntaxError.
if sys.version_info < (3, 11):  # noqa: UP036
    raise ImportError(
        f"Strata needs Python 3.11 or newer, and {sys.executable} is Python "
        f"{sys.version_info[0]}.{sys.version_info[1]}; install Strata with a newer one: "
        "python3.11 -m pip install strata-runtime"
    )

__all__ = [
    "AsyncCheckpointWriter",
    "BarrierResult",
    "Batches",
    "CheckpointInfo",
    "CheckpointManager",
    "DatasetRegistry",
    "Fact",
    "GenerationChanged",
    "Histogram",
    "Image",
    "LocalSteps",
    "Recovery",
    "Run",
    "ShardInfo",
    "ShardManager",
    "Sharded",
    "StopRequested",
    "StorageBackend",
    "StrataError",
    "Text",
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
    from strata.checkpoint.manager import CheckpointManager, load
    from strata.checkpoint.manifest import CheckpointInfo
    from strata.checkpoint.state.sharded_tensors import Sharded
    from strata.checkpoint.write.multipart_writer import AsyncCheckpointWriter
    from strata.data.reading.batch_iterator import Batches
    from strata.data.source_dataset import open_arrays, open_dataset, open_source
    from strata.errors import StrataError
    from strata.sdk.interrupts import GenerationChanged, StopRequested
    from strata.sdk.record.logged_media import Histogram, Image, Text
    from strata.sdk.record.user_facts import Fact, fact
    from strata.sdk.run import Run, join
    from strata.sdk.seeds.orchestrator import TrainingOrchestrator, WorkerConfig
    from strata.sdk.seeds.registry import DatasetRegistry, ShardManager
    from strata.sdk.seeds.shard_info import ShardInfo
    from strata.sdk.session.barrier_arrivals import BarrierResult
    from strata.sdk.session.membership import Recovery
    from strata.sdk.steps.local_steps import LocalSteps
    from strata.storage.backend import StorageBackend

# The module of each public name. They are imported when first used, since importing the SDK takes
# longer than most commands.
_HOMES = {
    "AsyncCheckpointWriter": "strata.checkpoint.write.multipart_writer",
    "BarrierResult": "strata.sdk.session.barrier_arrivals",
    "Batches": "strata.data.reading.batch_iterator",
    "CheckpointInfo": "strata.checkpoint.manifest",
    "CheckpointManager": "strata.checkpoint.manager",
    "DatasetRegistry": "strata.sdk.seeds.registry",
    "Fact": "strata.sdk.record.user_facts",
    "GenerationChanged": "strata.sdk.interrupts",
    "Histogram": "strata.sdk.record.logged_media",
    "Image": "strata.sdk.record.logged_media",
    "LocalSteps": "strata.sdk.steps.local_steps",
    "Recovery": "strata.sdk.session.membership",
    "Run": "strata.sdk.run",
    "ShardInfo": "strata.sdk.seeds.shard_info",
    "ShardManager": "strata.sdk.seeds.registry",
    "Sharded": "strata.checkpoint.state.sharded_tensors",
    "StopRequested": "strata.sdk.interrupts",
    "StorageBackend": "strata.storage.backend",
    "StrataError": "strata.errors",
    "Text": "strata.sdk.record.logged_media",
    "TrainingOrchestrator": "strata.sdk.seeds.orchestrator",
    "WorkerConfig": "strata.sdk.seeds.orchestrator",
    "fact": "strata.sdk.record.user_facts",
    "join": "strata.sdk.run",
    "load": "strata.checkpoint.manager",
    "open_arrays": "strata.data.source_dataset",
    "open_dataset": "strata.data.source_dataset",
    "open_source": "strata.data.source_dataset",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
