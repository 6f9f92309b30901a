"""Older facts of a log move to the archive in object storage, and are read from there by the
coordinator, also after a restart, and by the CLI."""

import json

import httpx
import pytest
from typer.testing import CliRunner

from strata.cli import build_app
from strata.coordinator.archive import log_upkeep, run_archiver
from strata.coordinator.archive.damaged_log import damage_of
from strata.core.record.record_retention import FactsMoved
from strata.store.sql import segment_plan
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import Hub
from tests.sdk.harness import until
from tests.storage.server import BUCKET, running


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(run_archiver, "LOOK_S", 0.1)
    monkeypatch.setattr(run_archiver, "KEEPING_S", 0.1)
    monkeypatch.setattr(log_upkeep, "LOOK_S", 0.1)
    monkeypatch.setattr(segment_plan, "SEGMENT_FACTS", 16)


def facts_by_rest(started) -> list[str]:
    wanted = {"node": "coordinator", "limit": 1_000}
    answer = httpx.get(f"{started.http_url}/api/timeline/events", params=wanted)
    return [each["ref"] for each in answer.raise_for_status().json()]


def test_older_facts_move_to_the_archive_and_are_read_from_there(tmp_path, trainees, monkeypatch):
    data = tmp_path / "data"
    with running(tmp_path / "s3") as settings:
        where = f"s3://{BUCKET}/kept"
        options = {
            "heartbeat_interval_s": 0.25,
            "snapshot_every_facts": 16,
            "archive_to": where,
            "facts_bytes": 1,
            "aws_endpoint_url": settings.aws_endpoint_url,
            "aws_access_key_id": settings.aws_access_key_id,
            "aws_secret_access_key": settings.aws_secret_access_key,
        }
        with coordinator(data, **options) as started:
            hub = Hub(started)
            trainees(hub.address, "keep", worker_id="a", steps=40, step_s=0.01).says("ended")
            moves = until(lambda: hub.facts("FactsMoved"), what="a move")
            assert isinstance(moves[0], FactsMoved)
            assert moves[0].place == where
            store = started.engine.kernel.store
            until(lambda: store.segments(1) == [], what="the last of the segments")
            known = facts_by_rest(started)
            assert len(known) >= 16
        with coordinator(data, **options) as started:
            assert set(facts_by_rest(started)) >= set(known)
        for name in ("endpoint_url", "access_key_id", "secret_access_key"):
            monkeypatch.setenv(f"AWS_{name.upper()}", getattr(settings, f"aws_{name}"))
        query = "select count(*) as n from events where node = 'coordinator'"
        command = ["sql", query, "--data", str(data), "--json"]
        shown = CliRunner().invoke(build_app(), command)
        assert shown.exit_code == 0, shown.output
        assert json.loads(shown.output)["n"] >= len(known)
        assert damage_of(data) == []
