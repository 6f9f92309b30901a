"""Guards that what a worker reports of itself is what it does: the figures move when it does."""

import os
import socket
import time

import psutil
import pytest

from strata.core.resources import ResourceMetrics
from strata.sdk.resources import CPU_WINDOW_S, ResourceSampler, network_bytes


@pytest.fixture
def sampler(tmp_path):
    return ResourceSampler(tmp_path)


def burn(seconds):
    """Uses this much CPU time."""
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


def test_cpu_is_that_of_the_last_second_however_often_it_is_asked(sampler):
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


def test_the_first_sample_tells_what_the_process_used_since_it_began(tmp_path):
    burn(0.2)
    assert ResourceSampler(tmp_path).sample().cpu_percent > 0


def test_memory_moves_with_what_is_held(sampler):
    before = sampler.sample().memory_used_bytes
    held = bytearray(os.urandom(1)) * (64 * 1024 * 1024)
    during = sampler.sample().memory_used_bytes
    assert during - before == pytest.approx(len(held), rel=0.1)
    del held
    assert sampler.sample().memory_used_bytes < during - 32 * 1024 * 1024


def test_writing_counts(sampler, tmp_path):
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


def test_network_counts_from_the_start_and_without_loopback(sampler):
    received, sent = network_bytes()
    sampler = ResourceSampler()
    sample = sampler.sample()
    assert 0 <= sample.network_rx_bytes < 50_000_000
    counted = psutil.net_io_counters(pernic=True)
    outside = sum(c.bytes_recv for name, c in counted.items() if name not in ("lo", "lo0"))
    assert received <= network_bytes()[0]
    assert network_bytes()[0] >= outside
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client, server.accept()[0] as peer:
            for _ in range(100):
                client.sendall(b"x" * 65_536)
                left = 65_536
                while left:
                    left -= len(peer.recv(left))
    assert sampler.sample().network_tx_bytes - sample.network_tx_bytes < 6_000_000
    assert sent <= network_bytes()[1]


def test_a_sample_is_cheap(sampler):
    began_s = time.process_time()
    for _ in range(200):
        sampler.sample()
    assert (time.process_time() - began_s) / 200 < 1e-3


def test_a_sample_never_fails(sampler):
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
