"""Guards the public surface: a name enters or leaves `strata` only by changing this list, and
importing the package stays as quick as if it had none."""

import subprocess
import sys

import strata

PUBLIC_NAMES = [
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


def test_public_names_are_frozen_and_sorted():
    assert strata.__all__ == PUBLIC_NAMES == sorted(PUBLIC_NAMES)


def test_every_public_name_exists():
    assert [name for name in strata.__all__ if not hasattr(strata, name)] == []


def test_nothing_is_imported_before_it_is_used():
    look = (
        "import strata, sys; print([n for n in sys.modules if n.startswith(('strata.', 'grpc'))])"
    )
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_worker_imports_no_server_module():
    look = "import strata, sys; strata.join; print([n for n in sys.modules if n in sys.argv[1:]])"
    server = ["duckdb", "hpack", "litestar", "obstore", "PIL", "pyarrow", "re2", "rich", "typer"]
    folders = [f"strata.{name}" for name in ("cli", "coordinator", "launch", "timeline")]
    command = [sys.executable, "-c", look, "uvicorn", *server, *folders]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(strata, "joim")
    assert set(PUBLIC_NAMES) <= set(dir(strata))
