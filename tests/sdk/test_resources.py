"""Resource samples follow what the process does."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from strata.core.workers.heartbeats import ResourceMetrics
from strata.sdk.record.resource_sampler import CPU_WINDOW_S, ResourceSampler


@pytest.fixture
def sampler(tmp_path):
    return ResourceSampler(tmp_path)


def burn(seconds):
    """Use this much CPU time."""
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


def test_cpu_is_measured_over_at_least_a_second(sampler):
    began_s, used_s = time.monotonic(), time.process_time()
    burn(CPU_WINDOW_S + 0.2)
    took_s, used_s = time.monotonic() - began_s, time.process_time() - used_s
    busy = sampler.sample().cpu_percent
    assert busy == pytest.approx(100 * used_s / took_s, rel=0.25)
    assert sampler.sample().cpu_percent == busy, "a moment later it is not measured anew"
    until_s = time.monotonic() + 30
    while sampler.sample().cpu_percent > busy / 2:
        assert time.monotonic() < until_s, "it is idle and does not look it"
        time.sleep(0.1)


def test_first_sample_covers_the_time_since_the_process_start(tmp_path):
    burn(0.2)
    assert ResourceSampler(tmp_path).sample().cpu_percent > 0


def test_memory_follows_allocations(sampler):
    before = sampler.sample().memory_used_bytes
    held = bytearray(os.urandom(1)) * (64 * 1024 * 1024)
    during = sampler.sample().memory_used_bytes
    assert during - before == pytest.approx(len(held), rel=0.1)
    del held
    assert sampler.sample().memory_used_bytes < during - 32 * 1024 * 1024


def test_written_bytes_are_counted(sampler, tmp_path):
    before = sampler.sample().disk_write_bytes
    with (tmp_path / "file").open("wb") as file:
        file.write(os.urandom(8 * 1024 * 1024))
        file.flush()
        os.fsync(file.fileno())
    written = sampler.sample().disk_write_bytes - before
    assert written == pytest.approx(8 * 1024 * 1024, rel=0.5)


def test_free_space_is_that_of_the_folder(sampler, tmp_path):
    assert sampler.sample().disk_free_bytes == pytest.approx(
        psutil.disk_usage(str(tmp_path)).free, rel=0.05
    )
    assert ResourceSampler(tmp_path / "gone").sample().disk_free_bytes == 0


def transfer(size_bytes):
    """Send bytes from one socket of this process to another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client, server.accept()[0] as peer:
            client.sendall(b"x" * size_bytes)
            left = size_bytes
            while left:
                left -= len(peer.recv(left))
            yield


def test_network_counts_the_sockets_of_the_process(sampler):
    before = sampler.sample()
    for _ in transfer(100_000):
        sampler.watch_network()
    after = sampler.sample()  # the sockets are closed, and still count
    assert after.network_tx_bytes - before.network_tx_bytes == 100_000
    assert after.network_rx_bytes - before.network_rx_bytes == 100_000


def test_network_of_other_processes_is_not_counted(sampler):
    before = sampler.sample()
    script = (
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "c = socket.create_connection(s.getsockname()); p, _ = s.accept()\n"
        "c.sendall(b'x' * 100_000); print(len(p.recv(100_000, socket.MSG_WAITALL)), flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"100000\n"
        during = sampler.sample()
        other.communicate(b"\n")
    assert during.network_tx_bytes == before.network_tx_bytes
    assert during.network_rx_bytes == before.network_rx_bytes


def test_network_of_a_followed_process_is_unknown(sampler):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        sampler.follow(other.pid)
        assert sampler.sample().network_rx_bytes is None
        other.communicate(b"\n")


def test_sample_never_fails(sampler):
    """Even in a process that may open no more files."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        sample = sampler.sample()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(sample, ResourceMetrics)
    assert sample.memory_used_bytes == 0
