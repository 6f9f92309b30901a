"""Guards that the page can send every request that changes something, asks for confirmation where a
change cannot be undone, and shows why the coordinator refused."""

import json
import os
import re
import signal
import sys
from contextlib import contextmanager

import pytest

from strata import __version__
from strata.coordinator.rest.app import document
from tests.cli.conftest import Started, until
from tests.web.conftest import START_S
from tests.web.test_views import expect, row

CHANGING = {"post", "put", "patch", "delete"}
CASES = {}


def case(route):
    """Register the function that makes the page send this request."""

    def register(function):
        CASES[route] = function
        return function

    return register


@contextmanager
def answered(page, route, status=range(200, 300)):
    """Wait until the page has sent the request of a route, and the coordinator has answered."""
    method, path = route.split()
    pattern = re.compile(re.sub(r"\{[^}]+\}", "[^/?]+", path) + r"(\?.*)?$")

    def is_route(response):
        return response.request.method == method and pattern.search(response.url)

    with page.expect_response(is_route) as answer:
        yield answer
    assert answer.value.status in status


def ended_task(cluster, **given):
    task = cluster.submit("ends", workers=1, **given)
    until(lambda: cluster.get(f"tasks/{task}")["status"] == "running", START_S)
    cluster.http.post(f"/api/tasks/{task}/stop").raise_for_status()
    until(lambda: cluster.get(f"tasks/{task}")["status"] == "stopped", START_S)
    return task


BY_COMMANDS = {
    "POST /api/workdirs",
    "POST /api/workdirs/{digest}/pieces",
    "POST /api/tokens",
    "POST /api/tokens/{name}/revoke",
}
"""A page cannot read folders, and shows no secrets: only commands send folders and make tokens."""


def test_every_changing_route_has_a_case():
    paths = json.loads(document(__version__))["paths"]
    routes = {
        f"{m.upper()} {path}" for path, methods in paths.items() for m in methods.keys() & CHANGING
    }
    assert routes - BY_COMMANDS == set(CASES)


@case("POST /api/datasets")
def register_a_dataset(page, visit, cluster, route):
    visit("data")
    page.get_by_role("link", name="Register a dataset").click()
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_text("enter an id")).to_be_visible()
    page.get_by_label("Id", exact=True).fill("from-page")
    page.get_by_label("Samples", exact=True).fill("1000")
    page.get_by_label("Samples per shard").fill("30")
    page.get_by_label("Metadata").fill("source=made up")
    with answered(page, route):
        page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("heading", name="from-page")).to_be_visible()
    (known,) = [each for each in cluster.get("datasets") if each["id"] == "from-page"]
    assert (known["total_samples"], known["shard_count"]) == (1000, 34)
    assert known["metadata"] == {"source": "made up"}


@case("POST /api/tasks")
def submit_a_task(page, visit, cluster, route):
    visit("tasks/new")
    page.get_by_label("Name").fill("external")
    with answered(page, route) as answer:
        page.get_by_role("button", name="Submit").click()
    assert "policy" not in json.loads(answer.value.request.post_data)
    task = answer.value.json()["task_id"]
    expect(page.get_by_role("heading", name=task)).to_be_visible()
    assert cluster.get(f"tasks/{task}")["policy"] == "continue"
    expect(page.locator("dt", has_text="Loss policy").locator("xpath=..")).to_contain_text(
        "continue"
    )


@case("POST /api/tasks/{task_id}/stop")
def stop_a_task(page, visit, cluster, route):
    body = {"name": "waits", "worker_count": 1}
    task = cluster.http.post("/api/tasks", json=body).raise_for_status().json()["task_id"]
    visit(f"tasks/{task}")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    assert cluster.get(f"tasks/{task}")["status"] not in ("stopping", "stopped")
    page.get_by_role("button", name="Stop", exact=True).click()
    with answered(page, route):
        page.get_by_role("button", name=re.compile("its workers save first")).click()
    expect(page.get_by_role("definition").filter(has_text="stopped").first).to_be_visible()


@case("POST /api/tasks/{task_id}/restart")
def restart_a_task(page, visit, cluster, route):
    task = ended_task(cluster)
    env = {"PWD": str(cluster.folder), "PYTHONPATH": ""}
    visit(f"tasks/{task}")
    page.get_by_role("button", name="Restart").click()
    for name, value in env.items():
        page.get_by_label(f"Value of {name}").fill(value)
    with answered(page, route) as answer:
        page.get_by_role("button", name="Restart").click()
    again = answer.value.json()["task_id"]
    expect(page.get_by_role("heading", name=again)).to_be_visible()
    cluster.http.post(f"/api/tasks/{again}/stop").raise_for_status()


@case("POST /api/tasks/{task_id}/continue")
def continue_a_task(page, visit, cluster, route):
    task = ended_task(cluster)
    visit(f"tasks/{task}")
    page.get_by_role("button", name="Continue").click()
    dialog = page.get_by_role("dialog", name=f"Continue {task}")
    with answered(page, route):
        preview(dialog, cluster, note="again")
    expect(dialog.get_by_text(re.compile("continues from step"))).to_be_visible()
    expect(dialog.get_by_text("config.note: – → again")).to_be_visible()
    with answered(page, route):
        dialog.get_by_role("button", name="Continue from step").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("region", name="Lineage")).to_contain_text("Continued once")
    assert cluster.get(f"tasks/{task}")["config"]["note"] == "again"
    cluster.http.post(f"/api/tasks/{task}/stop").raise_for_status()


@case("POST /api/tasks/{task_id}/fork")
def fork_a_task(page, visit, cluster, route):
    task = cluster.submit("forked", workers=1)
    until(lambda: cluster.get("checkpoints", task_id=task, status="completed"), START_S)
    cluster.http.post(f"/api/tasks/{task}/stop").raise_for_status()
    until(lambda: cluster.get(f"tasks/{task}")["status"] == "stopped", START_S)
    saved = cluster.get("checkpoints", task_id=task, status="completed")[0]
    visit(f"checkpoints?checkpoint={task}/{saved['id']}")
    page.get_by_role("button", name="Fork", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"Fork {task}")
    with answered(page, route):
        preview(dialog, cluster)
    with answered(page, route) as answer:
        dialog.get_by_role("button", name="Fork at step").click()
    fork = answer.value.json()["task_id"]
    expect(page.get_by_role("heading", name=fork)).to_be_visible()
    lineage = page.get_by_role("region", name="Lineage")
    expect(lineage).to_contain_text(f"Fork of {task} at step {saved['step']}")
    visit("tasks")
    expect(row(page, fork)).to_contain_text(f"fork of {task}")
    cluster.http.post(f"/api/tasks/{fork}/stop").raise_for_status()


def preview(dialog, cluster, **config):
    """Fill in the dialog that continues or forks a task, and ask for its preview."""
    dialog.get_by_label("Config entries to change").fill(json.dumps(config))
    dialog.get_by_label("Value of PWD").fill(str(cluster.folder))
    dialog.get_by_label("Value of PYTHONPATH").fill(os.pathsep.join(sys.path))
    dialog.get_by_role("button", name="Preview").click()


@case("POST /api/tasks/{task_id}/resize")
def resize_a_task(page, visit, cluster, route):
    task = cluster.submit("resized", workers=2)
    until(lambda: cluster.get(f"tasks/{task}")["status"] == "running", START_S)
    visit(f"tasks/{task}")
    page.get_by_role("button", name="Resize").click()
    dialog = page.get_by_role("dialog", name=f"Resize {task}")
    dialog.get_by_label("Workers", exact=True).fill("1")
    with answered(page, route):
        dialog.get_by_role("button", name="Resize").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 worker")
    assert cluster.get(f"tasks/{task}")["worker_count"] == 1
    cluster.http.post(f"/api/tasks/{task}/stop").raise_for_status()


@case("POST /api/tasks/{task_id}/checkpoint")
def request_a_checkpoint(page, visit, cluster, route):
    visit(f"tasks/{cluster.task}")
    with answered(page, route):
        page.get_by_role("button", name="Checkpoint now").click()
    expect(page.get_by_text("the workers save at their next step")).to_be_visible()


@case("POST /api/tasks/{task_id}/stacks")
def collect_stacks(page, visit, cluster, route):
    visit(f"tasks/{cluster.task}")
    panel = page.get_by_role("region", name="Stacks")
    with answered(page, route):
        panel.get_by_role("button", name="Collect stacks").click()
    first = panel.get_by_role("listitem").filter(has_text="rank 0").first
    first.locator("summary").click()
    expect(first).to_contain_text("main thread")
    expect(panel.get_by_text("a user asked for the stacks")).to_be_visible()


def completed(cluster):
    return cluster.get("checkpoints", task_id=cluster.task, status="completed")


def open_checkpoint(visit, cluster, number):
    until(lambda: len(completed(cluster)) > 2, START_S)
    saved = completed(cluster)[number]["id"]
    visit(f"checkpoints?checkpoint={cluster.task}/{saved}")
    return saved


@case("POST /api/checkpoints/{checkpoint_id}/verify")
def verify_a_checkpoint(page, visit, cluster, route):
    open_checkpoint(visit, cluster, 0)
    with answered(page, route):
        page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text(re.compile("verified, as saved"))).to_be_visible()


@case("POST /api/checkpoints/{checkpoint_id}/pin")
def pin_a_checkpoint(page, visit, cluster, route):
    saved = open_checkpoint(visit, cluster, 0)
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_label("Note (optional)").fill("for the paper")
    with answered(page, route):
        page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_text("pinned: for the paper").first).to_be_visible()
    cluster.http.delete(f"/api/checkpoints/{saved}/pin", params={"task_id": cluster.task})


@case("DELETE /api/checkpoints/{checkpoint_id}/pin")
def unpin_a_checkpoint(page, visit, cluster, route):
    until(lambda: completed(cluster), START_S)
    saved = completed(cluster)[0]["id"]
    pin = cluster.http.post(f"/api/checkpoints/{saved}/pin", params={"task_id": cluster.task})
    pin.raise_for_status()
    visit(f"checkpoints?checkpoint={cluster.task}/{saved}")
    page.get_by_role("button", name="Unpin", exact=True).click()
    with answered(page, route):
        page.get_by_role("button", name=f"Unpin {saved}").click()
    kept = cluster.get(f"checkpoints/{saved}", task_id=cluster.task)["kept_because"]
    assert not any(reason.startswith("pinned") for reason in kept)


@case("DELETE /api/checkpoints/{checkpoint_id}")
def delete_a_checkpoint(page, visit, cluster, route):
    saved = open_checkpoint(visit, cluster, 1)
    page.get_by_role("button", name="Delete", exact=True).click()
    with answered(page, route):
        page.get_by_role("button", name=re.compile("this cannot be undone")).click()
    expect(page.get_by_role("heading", name=saved)).to_have_count(0)
    assert saved not in [each["id"] for each in cluster.get("checkpoints")]


@case("POST /api/agents/{agent_id}/lost")
def declare_a_host_lost(page, visit, cluster, route):
    address = f"127.0.0.1:{cluster.up.grpc_port}"
    arguments = ("--coordinator", address, "--slots", "1", "--name", "host-b")
    agent = Started("agent", *arguments, "--data-dir", "agent-b", cwd=cluster.folder)
    try:
        until(lambda: host_named(cluster, "host-b")["agent"]["up"], START_S)
    finally:
        agent.discard()
    visit("settings")
    page.get_by_role("button", name="Declare lost… host-b").click()
    page.get_by_label("Reason").fill("switched off")
    with answered(page, route):
        page.get_by_role("button", name="Declare host-b lost").click()
    expect(row(page, "host-b")).to_contain_text("lost")
    expect(row(page, "host-b")).to_contain_text("switched off")


@case("POST /api/hosts/{host_id}/exclude")
def exclude_a_host(page, visit, cluster, route):
    change_host(page, visit, "Exclude", route, "GPU 3 is replaced")
    expect(row(page, "host-a")).to_contain_text("excluded")
    expect(row(page, "host-a")).to_contain_text("GPU 3 is replaced")
    cluster.http.post("/api/hosts/host-a/include", json={}).raise_for_status()


@case("POST /api/hosts/{host_id}/include")
def include_a_host(page, visit, cluster, route):
    why = {"reason": "maintenance"}
    cluster.http.post("/api/hosts/host-a/exclude", json=why).raise_for_status()
    change_host(page, visit, "Include", route, "repaired")
    expect(row(page, "host-a")).to_contain_text("up")
    [host] = [each for each in cluster.get("hosts") if each["id"] == "host-a"]
    assert host["excluded"] is None


@contextmanager
def host_with_gpus(cluster):
    """A host whose agent offers two GPUs; without a driver they are known by their index."""
    address = f"127.0.0.1:{cluster.up.grpc_port}"
    arguments = ("--coordinator", address, "--slots", "2", "--name", "host-g")
    gpus = {"CUDA_VISIBLE_DEVICES": "0,1"}
    agent = Started("agent", *arguments, "--data-dir", "agent-g", cwd=cluster.folder, **gpus)
    try:
        until(lambda: host_named(cluster, "host-g")["agent"]["up"], START_S)
        yield
    finally:
        agent.end(signal.SIGTERM)
        why = {"reason": "the test is over"}
        cluster.http.post("/api/agents/host-g/lost", json=why).raise_for_status()


def host_named(cluster, name):
    found = [each for each in cluster.get("hosts") if each["id"] == name]
    return found[0] if found else {"agent": {"up": False}}


@case("POST /api/hosts/{host_id}/gpus/{gpu}/exclude")
def exclude_a_gpu(page, visit, cluster, route):
    with host_with_gpus(cluster):
        change_gpu(page, visit, "Exclude", route, "its memory is faulty")
        gpus = page.get_by_role("region", name="GPUs of host-g")
        expect(row(gpus, "its memory is faulty")).to_contain_text("excluded")
        excluded = [gpu["excluded"] for gpu in host_named(cluster, "host-g")["gpus"]]
        assert excluded == [None, "its memory is faulty"]
        cluster.http.post("/api/hosts/host-g/gpus/1/include", json={}).raise_for_status()


@case("POST /api/hosts/{host_id}/gpus/{gpu}/include")
def include_a_gpu(page, visit, cluster, route):
    why = {"reason": "its memory is faulty"}
    with host_with_gpus(cluster):
        cluster.http.post("/api/hosts/host-g/gpus/1/exclude", json=why).raise_for_status()
        change_gpu(page, visit, "Include", route, "it was replaced")
        gpus = page.get_by_role("region", name="GPUs of host-g")
        expect(row(gpus, "used")).to_have_count(2)


def change_gpu(page, visit, action, route, reason):
    visit("settings?host=host-g")
    page.get_by_role("button", name=f"{action}… GPU 1 of host-g").click()
    page.get_by_label("Reason").fill(reason)
    with answered(page, route):
        page.get_by_role("button", name=f"{action} GPU 1 of host-g", exact=True).click()


def change_host(page, visit, action, route, reason):
    visit("settings")
    page.get_by_role("button", name=f"{action}… host-a").click()
    page.get_by_label("Reason").fill(reason)
    with answered(page, route):
        page.get_by_role("button", name=f"{action} host-a").click()


@case("POST /api/alerts/test")
def send_a_test_message(page, visit, cluster, route):
    visit("overview")
    page.get_by_role("button", name=re.compile("^Alerts: ")).click()
    with answered(page, route, status=[409]):
        page.get_by_role("button", name="Send a test message").click()
    dialog = page.get_by_role("dialog", name="Alerts")
    expect(dialog).to_contain_text("no channel for alerts is set up")
    expect(dialog).to_contain_text("alert_webhook")


REFUSED = {"POST /api/alerts/test"}
"""The cluster of these tests has no channel; the browser logs refused requests as errors."""


@pytest.mark.parametrize("route", sorted(CASES))
def test_page_sends_every_changing_request(page, visit, cluster, console_errors, route):
    CASES[route](page, visit, cluster, route)
    if route in REFUSED:
        console_errors.clear()


def test_refusal_shows_the_message_and_the_hint(page, visit, cluster, console_errors):
    visit("data?form=register")
    page.get_by_label("Id", exact=True).fill("noise")
    page.get_by_label("Samples", exact=True).fill("7")
    with answered(page, "POST /api/datasets", status=[409]) as answer:
        page.get_by_role("button", name="Register").click()
    refused = answer.value.json()["error"]
    expect(page.get_by_role("alert")).to_contain_text(refused["message"])
    expect(page.get_by_role("alert")).to_contain_text(refused["hint"])
    console_errors.clear()  # the browser logs refused requests as errors


def test_newest_checkpoint_is_not_deleted(page, visit, cluster, console_errors):
    task = cluster.submit("saves once", workers=1)
    until(lambda: cluster.get("checkpoints", task_id=task, status="completed"), START_S)
    cluster.http.post(f"/api/tasks/{task}/stop").raise_for_status()
    until(lambda: cluster.get(f"tasks/{task}")["status"] == "stopped", START_S)
    newest = cluster.get("checkpoints", task_id=task, status="completed")[0]["id"]
    visit(f"checkpoints?checkpoint={task}/{newest}")
    page.get_by_role("button", name="Delete", exact=True).click()
    with answered(page, "DELETE /api/checkpoints/{checkpoint_id}", status=[409]) as answer:
        page.get_by_role("button", name=re.compile("this cannot be undone")).click()
    expect(page.get_by_role("alert")).to_contain_text(answer.value.json()["error"]["message"])
    console_errors.clear()  # the browser logs refused requests as errors


def test_connected_host_is_not_declared_lost(page, visit, cluster, console_errors):
    visit("settings")
    page.get_by_role("button", name="Declare lost… host-a").click()
    page.get_by_label("Reason").fill("a mistake")
    page.get_by_role("button", name="Declare host-a lost").click()
    expect(page.get_by_role("alert")).to_contain_text("is connected")
    assert cluster.get("agents")[0]["up"]
    console_errors.clear()  # the browser logs refused requests as errors
