"""The self-test of a host: a healthy host passes, and a failure says what was wrong."""

import asyncio
import socket
import sys

import numpy as np
import pytest

from strata.agent import host_self_test
from strata.agent.host_self_test import SelfTestFailure
from strata.agent.self_test_gate import SelfTestGate


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_healthy_host_passes_every_part(tmp_path, listener, capsys):
    assert host_self_test.main("127.0.0.1", str(listener), str(tmp_path)) == 0
    parts = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert parts == ["network", "disk", "arithmetic", "memory", "GPUs"]
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


def test_disk_that_cannot_be_written_and_closed_port_are_failures(tmp_path):
    with pytest.raises(SelfTestFailure, match="16 MB cannot be written"):
        host_self_test.disk(tmp_path / "no-such-folder")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(SelfTestFailure, match=f"cannot connect to 127.0.0.1:{port}"):
        host_self_test.network("127.0.0.1", port)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('disk: fine')", ""),
        ("print('disk: fine'); print('memory: 3 bytes'); raise SystemExit(1)", "memory: 3 bytes"),
        ("import time; time.sleep(60)", "it did not end within 0.5 s"),
    ],
)
def test_gate_admits_a_task_after_a_test_that_passed(tmp_path, monkeypatch, program, reason):
    monkeypatch.setattr(
        "strata.agent.self_test_gate.LIMIT_S", 0.5 if reason.startswith("it") else 10
    )

    async def test():
        gate = SelfTestGate("127.0.0.1:1", tmp_path)
        gate._command = [sys.executable, "-c", program]
        ended = asyncio.get_running_loop().create_future()
        gate.on_end = lambda task, why: ended.set_result((task, why))
        assert not gate.admits("t")
        assert await ended == ("t", reason)
        assert gate.admits("t") == (reason == "")
        gate.close()

    asyncio.run(test())
