"""Every endpoint refuses unknown query parameters."""

import json
from collections import defaultdict

import httpx
import pytest

from strata.coordinator.rest.app import document
from tests.coordinator.rest.served import Coordinator

DESCRIBED = json.loads(document("1.2.3"))["paths"]
OPERATIONS = sorted((method.upper(), path) for path, item in DESCRIBED.items() for method in item)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as running, running.client() as client:
        running.train(1)
        yield client


@pytest.mark.parametrize(("method", "path"), [*OPERATIONS, ("GET", "/api/openapi.json")])
def test_unknown_parameter_is_refused_everywhere(client, method, path):
    path = path.format_map(defaultdict(lambda: "x", ref="@0"))
    required = {"question": "lost"} if path.endswith("/why") else {}
    answer = client.request(method, path, params={**required, "no_such": "1"}, json={})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], "'no_such'" in error["message"]) == ("invalid_argument", True)


def test_error_lists_the_known_parameters(client):
    error = client.get("/api/logs", params={"worker": "w0"}).json()["error"]
    assert error["message"] == "/api/logs has no parameter 'worker'"
    assert "worker_id" in error["hint"]
    assert "task_id" in error["hint"]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_error_lists_the_documented_parameters(client, method, path):
    described = DESCRIBED[path][method.lower()].get("parameters", [])
    names = sorted(each["name"] for each in described if each["in"] == "query")
    if path.endswith("/why"):
        return  # its parameters depend on the question
    answer = client.request(method, path, params={"no_such": "1"}, json={})
    hint = answer.json()["error"]["hint"]
    assert hint == (f"its parameters are {', '.join(names)}" if names else "it has no parameters")


def test_why_with_ref_refuses_parameters_of_questions(client):
    answer = client.get("/api/timeline/why", params={"ref": "@0", "worker": "w0"})
    assert answer.status_code == 400
    assert "'worker'" in answer.json()["error"]["message"]


def test_page_and_preflight_accept_any_parameter(client):
    assert client.get("/", params={"from": "a bookmark"}).status_code == 200
    answer = client.options("/api/logs", params={"limit": "5"})
    assert answer.status_code < httpx.codes.BAD_REQUEST


def test_questions_of_an_archived_run_can_be_listed(client):
    assert client.get("/api/timeline/questions", params={"run": "demo"}).status_code == 200


BODILESS = [each for each in OPERATIONS if each[0] in ("POST", "DELETE")]


@pytest.mark.parametrize(("method", "path"), BODILESS)
def test_unknown_field_of_a_body_is_refused_everywhere(client, method, path):
    path = path.format_map(defaultdict(lambda: "x"))
    answer = client.request(method, path, json={"no_such": True})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == "invalid_argument"
    assert "no_such" in error["message"] or "takes no body" in error["message"]


def test_empty_body_is_accepted_where_none_is_needed(client):
    for empty in ({"json": {}}, {"content": b""}):
        answer = client.post("/api/tasks/none/stop", **empty)
        assert answer.json()["error"]["code"] == "not_found"
