"""The network faults drop the packets that they should, and no others, and are removed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import namespaces
from tests.faults.namespaces import Network

COUNT = 200
RECEIVER = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    here.bind(("", 9000))
    print("ready", flush=True)
    here.settimeout(1)
    found = 0
    try:
        while here.recv(100):
            found += 1
    except TimeoutError:
        print(found)
"""
SENDER = f"""
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    for _ in range({COUNT}):
        here.sendto(b"x", (sys.argv[1], 9000))
        time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def network():
    namespaces.require()
    with Network("a", "b", "c") as network:
        yield network


def arrived(network, sender, receiver):
    """How many of the packets arrive."""
    program = [sys.executable, "-c", RECEIVER]
    with network[receiver].start(program, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout.readline() == "ready\n"
        to = network[receiver].address
        subprocess.run(network[sender].command([sys.executable, "-c", SENDER, to]), check=True)
        return int(waiting.stdout.read())


def test_hosts_reach_each_other(network):
    assert arrived(network, "a", "b") == COUNT


def test_cut_is_of_one_direction_and_of_one_host(network):
    with network["a"].cut("b"):
        assert arrived(network, "a", "b") == 0
        assert arrived(network, "b", "a") == COUNT
        assert arrived(network, "a", "c") == COUNT
    assert arrived(network, "a", "b") == COUNT


def test_partition_is_of_both_directions(network):
    with network.partition(["a"], ["b", "c"]):
        assert arrived(network, "a", "c") == 0
        assert arrived(network, "b", "a") == 0
        assert arrived(network, "b", "c") == COUNT


def test_lossy_host_loses_a_part(network):
    with network["a"].loses(0.3):
        assert COUNT * 0.5 < arrived(network, "a", "b") < COUNT * 0.9


def test_nothing_is_left_after_a_failure():
    namespaces.require()
    started = []

    def fail():
        with Network("d") as network:
            started.append((network["d"], network["d"].start(["sleep", "600"])))
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        fail()
    [(host, process)] = started
    assert process.wait(10) == -signal.SIGKILL
    assert not (Path("/run/netns") / host.namespace).exists()
