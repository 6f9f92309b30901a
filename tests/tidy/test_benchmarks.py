"""Guards docs/BENCHMARKS.md: it is rendered from stored results, and no figure is typed by hand."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import render  # noqa: E402
import run  # noqa: E402

GOALS = tomllib.loads((BENCHMARKS / "goals.toml").read_text("utf-8"))["goal"]
RESULTS = render.results()


def test_page_is_rendered_from_the_results():
    assert render.PAGE.read_text("utf-8") == render.page(), "run: python benchmarks/render.py"


@pytest.mark.parametrize("name", RESULTS)
def test_result_says_when_where_and_at_which_commit_it_was_measured(name):
    assert name in run.names()
    result = RESULTS[name]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", result["date"])
    assert re.match(r"[0-9a-f]{7,}", result["machine"]["commit"])
    assert {"cpu", "cores", "load_average", "python"} <= result["machine"].keys()


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal["what"])
def test_goal_names_a_figure_of_its_result(goal):
    assert goal["result"] in run.names()
    assert goal["must"] in render.MET
    if goal["result"] in RESULTS:
        assert goal["figure"] in dict(render.figures(RESULTS[goal["result"]]))


def test_every_script_prints_its_result_with_the_machine():
    call = re.compile(r'^ +(?:return )?show\((?:"|$)', re.MULTILINE)
    texts = {name: (BENCHMARKS / f"bench_{name}.py").read_text("utf-8") for name in run.names()}
    assert [name for name, text in texts.items() if not call.search(text)] == []


def test_earlier_rows_belong_to_scripts_that_exist():
    kept = json.loads((BENCHMARKS / "results" / "earlier.json").read_text("utf-8"))
    assert {name for row in kept["rows"] for name in row["names"]} <= {*run.names()}


@pytest.mark.parametrize("change", ["one_loss", "one_join"])
def test_measured_reassignment_among_a_thousand_workers_takes_less_than_10_ms(change):
    """The time that was measured and stored, not a time on the machine that runs this test."""
    result = RESULTS["assign"]
    assert (result["workers"], result["shards"]) == (1_000, 100_000)
    assert result[change]["median_ms"] < 10
