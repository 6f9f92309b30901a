"""Guards docs/FAULTS.md: it is rendered from stored results, with a row for every fault."""

import json
from pathlib import Path

from tests.faults.fault_matrix import load
from tests.faults.table import ELSEWHERE, PEERS, RESULTS, page

ROOT = Path(__file__).parents[2]
FOUND = json.loads(RESULTS.read_text("utf-8"))["faults"]


def test_page_is_rendered_from_the_results():
    written = (ROOT / "docs" / "FAULTS.md").read_text("utf-8")
    assert written == page(), "run: python -m tests.faults.table > docs/FAULTS.md"


def test_every_fault_of_the_matrix_was_measured_and_lost_nothing():
    assert set(FOUND) == set(load()), "run: make faults"
    lost = {each["name"] for each in FOUND.values() if each["lost_samples"] or each["lost_facts"]}
    assert lost == set()


def test_other_tools_are_compared_on_faults_of_the_matrix():
    peers = json.loads(PEERS.read_text("utf-8")) if PEERS.exists() else {}
    assert set(peers) <= set(load())


def test_faults_held_elsewhere_have_their_tests():
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8"), test
