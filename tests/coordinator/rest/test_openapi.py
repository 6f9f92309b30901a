"""The OpenAPI document is complete and correct: schemathesis sends valid and invalid requests to
every endpoint and compares the answers with the document."""

import json

import pytest
import schemathesis
from hypothesis import Phase, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from strata.coordinator.rest.app import document
from tests.coordinator.rest.served import Coordinator

STREAMS = r"^/api/((logs/)?stream|live)$"  # endless: schemathesis would wait for ever
CONTRACT = {
    ("GET", "/api/health"),
    ("GET", "/api/status"),
    ("GET", "/api/settings"),
    ("GET", "/api/dashboard"),
    ("GET", "/api/workers"),
    ("GET", "/api/workers/{worker_id}"),
    ("GET", "/api/datasets"),
    ("POST", "/api/datasets"),
    ("GET", "/api/datasets/{dataset_id}/preview"),
    ("GET", "/api/datasets/{dataset_id}/shards"),
    ("GET", "/api/checkpoints"),
    ("GET", "/api/checkpoints/{checkpoint_id}"),
    ("DELETE", "/api/checkpoints/{checkpoint_id}"),
    ("POST", "/api/checkpoints/{checkpoint_id}/verify"),
    ("POST", "/api/checkpoints/{checkpoint_id}/pin"),
    ("DELETE", "/api/checkpoints/{checkpoint_id}/pin"),
    ("GET", "/api/barriers"),
    ("GET", "/api/metrics"),
    ("GET", "/api/tasks"),
    ("POST", "/api/tasks"),
    ("GET", "/api/tasks/{task_id}"),
    ("POST", "/api/tasks/{task_id}/stop"),
    ("POST", "/api/tasks/{task_id}/continue"),
    ("POST", "/api/tasks/{task_id}/fork"),
    ("POST", "/api/tasks/{task_id}/restart"),
    ("POST", "/api/tasks/{task_id}/resize"),
    ("POST", "/api/tasks/{task_id}/checkpoint"),
    ("POST", "/api/tasks/{task_id}/stacks"),
    ("GET", "/api/tasks/{task_id}/stacks"),
    ("GET", "/api/tasks/{task_id}/audit"),
    ("GET", "/api/tasks/{task_id}/audit/batch"),
    ("GET", "/api/tasks/{task_id}/audit/contents"),
    ("GET", "/api/tasks/{task_id}/audit/sample"),
    ("GET", "/api/tasks/{task_id}/audit/step"),
    ("GET", "/api/tasks/{task_id}/logs"),
    ("GET", "/api/logs"),
    ("GET", "/api/logs/stream"),
    ("GET", "/api/agents"),
    ("GET", "/api/hosts"),
    ("GET", "/api/tokens"),
    ("POST", "/api/tokens"),
    ("POST", "/api/tokens/{name}/revoke"),
    ("POST", "/api/workdirs"),
    ("GET", "/api/workdirs/{digest}"),
    ("POST", "/api/workdirs/{digest}/pieces"),
    ("POST", "/api/hosts/{host_id}/exclude"),
    ("POST", "/api/hosts/{host_id}/gpus/{gpu}/exclude"),
    ("POST", "/api/hosts/{host_id}/gpus/{gpu}/include"),
    ("POST", "/api/hosts/{host_id}/include"),
    ("POST", "/api/agents/{agent_id}/lost"),
    ("GET", "/api/events"),
    ("GET", "/api/live"),
    ("GET", "/api/runs"),
    ("GET", "/api/timeline/facts"),
    ("GET", "/api/timeline/host-health"),
    ("GET", "/api/timeline/hosts"),
    ("GET", "/api/timeline/metrics"),
    ("GET", "/api/timeline/shards"),
    ("GET", "/api/timeline/usage"),
    ("GET", "/api/alerts"),
    ("POST", "/api/alerts/test"),
    ("GET", "/api/metrics/history"),
    ("GET", "/api/stream"),
    ("GET", "/api/timeline/span"),
    ("GET", "/api/timeline/density"),
    ("GET", "/api/timeline/lanes"),
    ("GET", "/api/timeline/at"),
    ("GET", "/api/timeline/events"),
    ("GET", "/api/timeline/event/{ref}"),
    ("GET", "/api/timeline/story"),
    ("GET", "/api/timeline/why"),
    ("GET", "/api/timeline/questions"),
    ("GET", "/api/timeline/diff"),
    ("GET", "/api/timeline/seek"),
    ("GET", "/api/timeline/export"),
    ("GET", "/api/timeline/curves"),
    ("GET", "/api/timeline/curves/points"),
    ("GET", "/api/timeline/curves/markers"),
    ("GET", "/api/timeline/curves/settings"),
    ("GET", "/api/timeline/media"),
    ("GET", "/api/timeline/media/{ref}"),
    ("GET", "/api/timeline/goodput"),
    ("GET", "/api/timeline/goodput/runs"),
    ("GET", "/api/timeline/logged"),
    ("GET", "/metrics"),
}

# An invalid cursor or too many workers depend on the state, which a schema cannot describe.
excluded = [positive_data_acceptance]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as running:
        running.train(2)
        yield running


def test_every_endpoint_is_described(coordinator):
    with coordinator.client() as client:
        document = client.get("/api/openapi.json").json()
    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert described == CONTRACT


schema = schemathesis.openapi.from_dict(json.loads(document("1.2.3"))).exclude(path_regex=STREAMS)


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=5, deadline=None, phases=[Phase.generate])
def test_answers_match_the_openapi_document(case, coordinator):
    case.call_and_validate(base_url=coordinator.url, excluded_checks=excluded)


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=60, deadline=None)
def test_answers_to_invalid_requests_match_the_openapi_document(case, coordinator):
    case.call_and_validate(base_url=coordinator.url, excluded_checks=excluded)
