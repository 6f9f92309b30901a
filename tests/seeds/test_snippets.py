"""Guards the Python of the first documents: each snippet runs as it is written, in a process of its
own, against a real S3 server and a real coordinator."""

import subprocess
import sys

import pytest

from strata.storage.s3 import S3Storage
from tests.cli.runs import run, script
from tests.coordinator.conftest import coordinator
from tests.sdk.harness import clean_environment
from tests.storage.server import BUCKET

SAVE = """
from strata import DatasetRegistry, CheckpointManager

model_state_bytes = bytes(range(256)) * 1_000
ckpt_manager = CheckpointManager(path="s3://{bucket}/models", keep_count=5)
for step in range(5_000, 5_007):
    ckpt_manager.save(model_state_bytes, step=step, epoch=2)
ckpt_manager.wait_pending()
print(len(ckpt_manager.all_checkpoints()))
"""

RECOVER = """
from dtruntime import CheckpointManager, TrainingOrchestrator

ckpt_manager = CheckpointManager(path="s3://{bucket}/models")
latest_info = ckpt_manager.get_latest()
if latest_info:
    print(f"Recovering from Epoch {{latest_info.epoch}}, Step {{latest_info.step}}")
assert ckpt_manager.load(latest_info.checkpoint_id) == bytes(range(256)) * 1_000
"""

SHARDS = """
from dtruntime import TrainingOrchestrator

worker = TrainingOrchestrator("{address}")
worker.connect()
config = worker.register_worker(worker_id="worker-01", gpu_count=4, port=7000)
worker.register_dataset("imagenet-1k", 1281167, 10000, shuffle=True, seed=42)
shards = worker.get_shards("imagenet-1k", epoch=0)
ranges = sorted((shard.start_index, shard.end_index) for shard in shards)
assert ranges[0][0] == 0 and ranges[-1][1] == 1281167
assert all(left[1] == right[0] for left, right in zip(ranges, ranges[1:]))
assert worker.heartbeat(step=1)
result = worker.barrier("step-1", 1)
print(len(shards), result.released, result.participants)
worker.deregister()
"""

TRAINING = """
import numpy as np
import strata

with strata.join() as run:
    state = run.restore({"w": np.zeros(1_000)})
    while run.steps < 3:
        run.mark_step(loss=1.0)
    run.save(state)
"""

UNREGISTERED = """
import strata

with strata.join() as run:
    for batch in run.batches("imagenet-1k", batch_size=8):
        run.mark_step()
"""


@pytest.fixture(scope="module")
def server(s3_settings):
    return s3_settings


@pytest.fixture(scope="module")
def aws(server):
    """The usual variables of a real S3 server."""
    return {
        "AWS_ENDPOINT_URL": server.aws_endpoint_url,
        "AWS_REGION": server.aws_region,
        "AWS_ACCESS_KEY_ID": server.aws_access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.aws_secret_access_key,
    }


def python(text, folder, **variables):
    """Runs a snippet; what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_checkpoint_manager_saves_to_s3_and_another_process_recovers(aws, tmp_path):
    assert python(SAVE.format(bucket=BUCKET), tmp_path, **aws) == "5\n", "keep_count are kept"
    told = python(RECOVER.format(bucket=BUCKET), tmp_path, **aws)
    assert told == "Recovering from Epoch 2, Step 5006\n"


def test_orchestrator_registers_gets_shards_beats_and_meets(tmp_path):
    with coordinator(tmp_path / "data") as started:
        text = SHARDS.format(address=f"127.0.0.1:{started.grpc_port}")
        assert python(text, tmp_path) == "129 True 1\n"


def test_storage_variables_of_the_documents_choose_s3(server, aws, tmp_path):
    chosen = {"STORAGE_BACKEND": "s3", "CHECKPOINT_BUCKET": f"{BUCKET}/chosen"}
    name = script(tmp_path, TRAINING)
    given = ("--workers", "1", "--data-dir", str(tmp_path / "data"))
    code, told = run(tmp_path, name, *given, **chosen, **aws)
    assert code == 0, told
    assert S3Storage(BUCKET, "chosen", server).walk("") != []


def test_unregistered_dataset_is_an_error_that_says_what_to_do(tmp_path):
    name = script(tmp_path, UNREGISTERED)
    code, told = run(tmp_path, name, "--workers", "1", "--data-dir", str(tmp_path / "data"))
    assert code != 0
    assert "dataset 'imagenet-1k' is not registered" in told
    assert "register it first" in told
