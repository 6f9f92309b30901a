"""The fault matrix on real processes: after every fault nothing is lost, and `why` names the cause.

Faults that are prepared alike share a cluster. With `FAULTS_OUT=FILE` what was measured is
stored there: `make faults` renders docs/FAULTS.md from it.
"""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.fault_cluster import running
from tests.faults.fault_matrix import load, play
from tests.faults.fault_needs import missing

FAULTS = load()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """The running cluster of a fault; the one before ends if it is prepared otherwise."""
    current = {}

    def cluster_for(fault):
        if fault.prepare not in current:
            close(current)
            context = running(tmp_path_factory.mktemp("cluster"), fault.prepare)
            current[fault.prepare] = (context, context.__enter__())
        return current[fault.prepare][1]

    yield cluster_for
    close(current)


def close(current):
    while current:
        context, _ = current.popitem()[1]
        context.__exit__(None, None, None)


def by_cluster(fault):
    return fault.prepare.__qualname__


@pytest.mark.parametrize("fault", sorted(FAULTS.values(), key=by_cluster), ids=lambda f: f.name)
def test_cluster_loses_nothing_and_names_the_cause(fault, clusters):
    if lacks := missing(fault):
        pytest.skip(lacks)
    store(play(clusters(fault), fault))


def store(measured):
    """Keep what was measured, with the machine, if a file for it is named."""
    if not (file := os.environ.get("FAULTS_OUT")):
        return
    kept = Path(file)
    found = json.loads(kept.read_text("utf-8"))["faults"] if kept.exists() else {}
    found = {name: each for name, each in found.items() if name in FAULTS}
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "machine": machine()}
    about["faults"] = found | {measured["name"]: measured}
    kept.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", "utf-8")


def machine():
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    from common import machine

    return machine()
