"""The self-test of a host: a healthy host passes, and a failure says what was wrong."""

import asyncio
import socket
import sys
import time

import numpy as np
import pytest

from strata.agent import host_self_test
from strata.agent.host_self_test import SelfTestFailure
from strata.agent.self_test_gate import FailedTest, SelfTestGate
from strata.agent.slot_gpus import SlotGpus


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_healthy_host_passes_every_part(tmp_path, listener, capsys):
    assert host_self_test.main("127.0.0.1", str(listener), str(tmp_path)) == 0
    parts = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert parts == ["disk", "arithmetic", "memory", "GPUs", "network"]
    assert list(tmp_path.iterdir()) == []


def test_product_with_one_wrong_bit_is_a_failure():
    left, right = host_self_test.factors()
    product = left @ right
    host_self_test.require_product(product, "here")
    product[17, 4] ^= 1
    with pytest.raises(SelfTestFailure, match="the matrix product on here has digest"):
        host_self_test.require_product(product, "here")


def test_product_is_the_same_in_every_number_format():
    left, right = host_self_test.factors()
    for kind in (np.int64, np.float64, np.float32):
        host_self_test.require_product(left.astype(kind) @ right.astype(kind), str(kind))


def test_disk_that_cannot_be_written_is_a_failure(tmp_path):
    with pytest.raises(SelfTestFailure, match="16 MB cannot be written"):
        host_self_test.disk(tmp_path / "no-such-folder")


def test_coordinator_that_does_not_answer_is_no_failure_of_the_host():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = host_self_test.network("127.0.0.1", port, time.monotonic())
    assert said.startswith(f"not tested: cannot connect to 127.0.0.1:{port}")


def test_coordinator_that_starts_during_the_test_is_connected(monkeypatch):
    """The test retries: the port is opened after the first attempt was refused."""
    opened = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))

        def listen(_):
            server.listen()
            opened.append(True)

        monkeypatch.setattr(time, "sleep", listen)
        said = host_self_test.network("127.0.0.1", server.getsockname()[1], time.monotonic() + 60)
    assert opened == [True]
    assert said.startswith("connected to the coordinator in")


def test_gpus_without_a_torch_that_uses_cuda_are_not_tested(monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch uses CUDA")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert host_self_test.gpus() == "not tested: this torch is built without CUDA"


def test_gpus_that_cuda_does_not_find_are_a_failure(monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count():
        pytest.skip("CUDA finds GPUs here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(SelfTestFailure, match="CUDA finds 0 of 2 GPUs"):
        host_self_test.gpus()


@pytest.mark.parametrize(
    ("program", "failed"),
    [
        ("print('disk: fine')", None),
        (
            "print('disk: fine'); print('memory: 3 bytes'); raise SystemExit(3)",
            FailedTest("memory: 3 bytes"),
        ),
        (
            "print('GPUs: wrong'); print('failed GPU: GPU-b'); raise SystemExit(3)",
            FailedTest("GPUs: wrong", "GPU-b"),
        ),
        ("print('disk: fine'); raise RuntimeError('numpy cannot be imported')", None),
        ("import time; print('disk: fine', flush=True); time.sleep(60)", None),
    ],
)
def test_gate_rejects_a_task_only_after_a_part_that_failed(tmp_path, monkeypatch, program, failed):
    monkeypatch.setattr("strata.agent.self_test_gate.LIMIT_S", 1 if "sleep" in program else 60)

    async def test():
        gate = SelfTestGate("127.0.0.1:1", tmp_path)
        gate._command = [sys.executable, "-c", program]
        ended = asyncio.get_running_loop().create_future()
        gate.on_end = lambda task, failed: ended.set_result((task, failed))
        gpus = SlotGpus([["0"], ["GPU-b"]])
        assert not gate.admits("t", gpus, asked=False)
        assert await ended == ("t", failed)
        assert gate.admits("t", gpus, asked=False) == (failed is None)
        gate.close()

    asyncio.run(test())


def test_gate_tests_unasked_only_if_it_is_set_to(tmp_path):
    gate = SelfTestGate("127.0.0.1:1", tmp_path, always=False)
    assert gate.admits("t", SlotGpus(), asked=False)
