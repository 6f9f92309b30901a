"""The fault matrix on real processes: after every fault nothing is lost, and `why` names the cause.

Faults with the same settings share a cluster. With `FAULTS_OUT=FILE` what was measured is
stored there: `make faults` renders docs/FAULTS.md from it.
"""

import json
import os
from pathlib import Path

import pytest

from tests.faults.fault_cluster import running
from tests.faults.fault_matrix import load, play
from tests.faults.fault_needs import missing

FAULTS = load()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """The running cluster for a fault; the one before ends if its settings are others."""
    current = {}

    def cluster_for(fault):
        key = fault.name if fault.own_cluster else repr(sorted(fault.settings.items()))
        if key not in current:
            close(current)
            context = running(tmp_path_factory.mktemp("cluster"), **fault.settings)
            current[key] = (context, context.__enter__())
        return current[key][1]

    yield cluster_for
    close(current)


def close(current):
    while current:
        context, _ = current.popitem()[1]
        context.__exit__(None, None, None)


def by_settings(fault):
    return (fault.own_cluster, repr(sorted(fault.settings.items())))


@pytest.mark.parametrize("fault", sorted(FAULTS.values(), key=by_settings), ids=lambda f: f.name)
def test_cluster_loses_nothing_and_names_the_cause(fault, clusters):
    if lacks := missing(fault):
        pytest.skip(lacks)
    store(play(clusters(fault), fault))


def store(measured):
    """Keep what was measured, if a file for it is named."""
    if file := os.environ.get("FAULTS_OUT"):
        kept = Path(file)
        rows = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
        kept.write_text(json.dumps(rows | {measured["name"]: measured}, indent=1) + "\n", "utf-8")
