"""`strata metrics` shows the logged metrics of a run, from its folder and over REST alike."""

import json

import httpx
import pytest

from strata.cli.support.charts.terminal_chart import measured
from tests.cli.conftest import free_port, started_verb, strata
from tests.cli.curved import LOST_AT, NAN_AT, SAVED_AT, SPIKE, STEPS, TASK


@pytest.fixture(scope="module")
def url(curved, tmp_path_factory):
    """A coordinator that has the data of the run."""
    http = str(free_port())
    data = str(curved / "data")
    arguments = ("up", "--data-dir", data, "--http-port", http, "--grpc-port", "0")
    with started_verb(*arguments, cwd=tmp_path_factory.mktemp("up")) as up:
        up.wait_for(lambda up: any("data " in line for line in up.err), "sign of a start")
        yield f"http://127.0.0.1:{http}"


@pytest.fixture(scope="module", params=["folder", "rest"])
def metrics(request, curved, tmp_path_factory):
    """Run the verb; returns its output."""
    folder = tmp_path_factory.mktemp("metrics")
    if request.param == "folder":
        source = ("--data", str(curved / "data"))
    else:
        source = ("--url", request.getfixturevalue("url"))

    def ask(*arguments, code=0):
        ended = strata("metrics", TASK, *arguments, *source, cwd=folder)
        assert ended.returncode == code, ended.stderr
        return ended.stdout if code == 0 else ended.stderr

    return ask


def test_table_has_the_last_and_extreme_values(metrics):
    rows = {line.split()[0]: line.split() for line in metrics().splitlines() if line.strip()}
    assert rows["val"][1:] == ["24", "12", "24", "2", f"12–{STEPS}"]
    assert rows["loss"][3] == f"{SPIKE:g}"
    assert rows["steps/s"][1] == "derived"
    text = metrics()
    assert "loss: 1 point is not finite" in text
    assert f"{LOST_AT - SAVED_AT} undone steps are left out" in text


def test_chart_has_axes_with_labels(metrics):
    lines = metrics("loss", "lr", "--plot").splitlines()
    assert [line.split()[0] for line in lines if line[:1] not in ("", " ")] == ["loss", "lr"]
    assert "1 not finite" in lines[0]
    assert f"{SPIKE:g} ┤" in lines[1]
    assert lines[12].split() == ["0", "step", str(STEPS - 1)]
    by_samples = metrics("lr", "--plot", "--x", "samples").splitlines()
    assert by_samples[-1].split() == ["8", "samples", str(8 * STEPS)]


def test_json_has_a_curve_on_each_line(metrics):
    curves = [json.loads(line) for line in metrics("lr", "val", "--json").splitlines()]
    assert [(each["name"], each["points"]) for each in curves] == [("lr", STEPS), ("val", 2)]
    (points,) = [json.loads(line) for line in metrics("loss", "--plot", "--json").splitlines()]
    assert points["not_finite"] == [NAN_AT]
    assert points["mean"][NAN_AT] is None


def test_unknown_metric_is_named(metrics):
    assert "'acc'" in metrics("acc", code=4)


def test_rest_has_every_answer(url):
    with httpx.Client(base_url=f"{url}/api/timeline/curves", timeout=20) as client:
        listed = client.get("", params={"task": TASK}).json()
        assert listed["undone_steps"] == LOST_AT - SAVED_AT
        asked = {"task": TASK, "name": ["loss", "lr"], "from": 2, "to": 6, "undone": True}
        points = client.get("/points", params=asked).json()
        assert [(c["name"], c["undone"], c["step"]) for c in points["curves"]] == [
            ("loss", False, [2, 3, 4, 5, 6]),
            ("lr", False, [2, 3, 4, 5, 6]),
            ("loss", True, []),
            ("lr", True, []),
        ]
        assert (points["x"], points["from"], points["to"]) == ("step", 2.0, 6.0)
        kinds = [m["kind"] for m in client.get("/markers", params={"task": TASK}).json()["markers"]]
        assert kinds.count("lost") == 2
        settings = client.get("/settings", params={"task": TASK}).json()
        assert settings["logged"]["peak_flops"] == 1e12
        wrong = client.get("/points", params={"task": TASK, "name": "loss", "x": "epochs"})
        assert wrong.status_code == 400
        assert client.get("", params={"task": "train-9"}).status_code == 404


def test_alerts_of_a_recorded_run_name_a_task_that_does_not_exist(curved, tmp_path):
    data = ("--data", str(curved / "data"))
    listed = strata("alerts", TASK, "--all", "--json", *data, cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    rules = [json.loads(line)["rule"] for line in listed.stdout.splitlines()]
    assert "loss_not_finite" in rules
    table = strata("alerts", "--all", *data, cwd=tmp_path).stdout.splitlines()[0]
    assert table.split()[:3] == ["alert", "status", "severity"]
    for verb in (("alerts", "nope"), ("stacks", "nope", "--last"), ("goodput", "nope")):
        unknown = strata(*verb, *data, cwd=tmp_path)
        said = f"strata: no task 'nope' is recorded here\nhint: the tasks are {TASK}\n"
        assert (unknown.returncode, unknown.stderr) == (4, said), verb


def test_last_of_a_chart_is_that_of_the_table(metrics):
    found = [json.loads(line) for line in metrics("step_s", "loss", "--json").splitlines()]
    drawn = metrics("step_s", "loss", "--plot")
    for each in found:
        assert f"{each['name']}  last {measured(each['last'], each['unit'])}" in drawn
    assert measured(0.00512, "s") == "5.12 ms"
    assert measured(410e-6, "s") == "410 µs"
    assert measured(1234567.0, "") == "1,234,567"


def test_why_names_what_the_log_has(curved, tmp_path):
    data = ("--data", str(curved / "data"))
    no = strata("why", "hang", TASK, *data, cwd=tmp_path)
    assert f"no hang of {TASK} was detected" in no.stdout, no.stderr
    unknown = strata("why", "hang", "nope", *data, cwd=tmp_path)
    assert unknown.returncode == 4
    assert "no task 'nope' is recorded here" in unknown.stderr
    unnamed = strata("why", "alert", *data, cwd=tmp_path)
    assert unnamed.returncode == 2
    assert "this log has alert-1" in unnamed.stderr
