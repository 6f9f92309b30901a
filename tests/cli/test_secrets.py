"""A secret in every place that a user can put one is found nowhere but where it must be: not in the
data folder, the answers of the API, the output of a verb, or the log."""

import json
import sqlite3
import zlib
from contextlib import closing, suppress

import httpx
import pytest
import zstandard

from tests.agent.harness import Agent, until
from tests.cli.conftest import WAIT_S, strata
from tests.coordinator.process import process

MARK = "zq7X9"
"""Is part of every secret, and of nothing else."""

PLAIN = "project-of-the-config"

SETTINGS = {
    "token": f"token-{MARK}-of-the-cluster",
    "aws_access_key_id": "AKIAEXAMPLE",
    "aws_secret_access_key": f"aws-{MARK}",
    "aws_session_token": f"session-{MARK}",
    "aws_endpoint_url": "http://127.0.0.1:9",
    "checkpoint_upload": "s3://bucket/prefix",
    "alert_webhook": f"http://user:password-{MARK}@127.0.0.1:9/hooks/{MARK}?key={MARK}",
    "alert_email_to": "someone@example.org",
    "alert_email_from": "strata@example.org",
    "alert_smtp_host": "127.0.0.1",
    "alert_smtp_port": 9,
    "alert_smtp_user": "strata",
    "alert_smtp_password": f"smtp-{MARK}",
}

SCRIPT = """
import os, strata
with strata.join() as run:
    assert run.config["api_key"] == os.environ["API_KEY"], run.config
    assert run.config["tracker"]["password"] == os.environ["API_KEY"]
    assert run.config["layers"] == 3
    run.log_config({"hf_token": os.environ["API_KEY"], "width": 8})
    for _ in range(3):
        run.mark_step(loss=1.0)
    raise SystemExit(run.config["code"])
"""

VERBS = (
    ["status"],
    ["doctor"],
    ["tasks"],
    ["workers"],
    ["agents"],
    ["events", "--limit", "1000"],
    ["logs"],
    ["alerts"],
    ["alerts", "test"],
    ["story", "task:TASK"],
    ["metrics", "TASK"],
    ["export", "--format", "jsonl", "--out", "run.jsonl"],
    ["explain", "token"],
)


def content_of(path) -> list[bytes]:
    """The bytes of a file, and those of each value in a database, decompressed where they are."""
    found = [path.read_bytes()]
    if found[0].startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            names = [row[0] for row in database.execute("SELECT name FROM sqlite_master")]
            for name in names:
                try:
                    rows = database.execute(f'SELECT * FROM "{name}"').fetchall()
                except sqlite3.Error:  # an index
                    continue
                found += [value for row in rows for value in row if isinstance(value, bytes)]
    return [form for content in found for form in (content, *decompressed(content))]


def decompressed(content: bytes) -> list[bytes]:
    forms = []
    for at in range(min(len(content), 16)):
        with suppress(zlib.error):
            forms.append(zlib.decompressobj(-15).decompress(content[at:]))
    at = content.find(b"\x28\xb5\x2f\xfd")
    while at >= 0:
        with suppress(zstandard.ZstdError):
            forms.append(zstandard.ZstdDecompressor().decompressobj().decompress(content[at:]))
        at = content.find(b"\x28\xb5\x2f\xfd", at + 1)
    return forms


def leaks_in(folder, mark=MARK) -> list[str]:
    """The files that contain a secret."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [
        str(path.relative_to(folder))
        for path in files
        if any(mark.encode() in form for form in content_of(path))
    ]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A coordinator with secrets in its settings, where a task with secrets has failed."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "train.py").write_text(SCRIPT, "utf-8")
    head = {"Authorization": f"Bearer {SETTINGS['token']}"}
    with process(folder, **SETTINGS) as started:
        agent = Agent(folder, started.address, 1, token=SETTINGS["token"])
        client = httpx.Client(
            base_url=started.http_url, headers=head, timeout=WAIT_S, trust_env=False
        )
        with client, closing(agent):
            secret = f"value-{MARK}"
            config = {
                "api_key": secret,
                "tracker": {"password": secret, "project": PLAIN},
                "layers": 3,
                "code": 7,
            }
            asked = {
                "name": "n",
                "entry": str(folder / "train.py"),
                "config": config,
                "env": {"PWD": str(folder), "API_KEY": secret},
                "max_restarts": 0,
            }
            task = client.post("/api/tasks", json=asked).raise_for_status().json()["task_id"]
            path = f"/api/tasks/{task}"
            state = until(
                lambda: (
                    (now := client.get(path).json()["status"]) in ("failed", "completed") and now
                ),
                "the end of the task",
                WAIT_S,
            )
            assert state == "failed"
            [reason] = {client.get(path).json()["reason"]}
            assert "7" in reason, "the script's own code, after its checks of the config"
            yield folder, started, client, task


def test_data_folder_holds_no_secret(ended):
    folder, *_ = ended
    leaks = [path for path in leaks_in(folder) if path.startswith("data/")]
    assert leaks == [], "the file of the task's environment was deleted at its end"
    assert "data/log.db" in leaks_in(folder, PLAIN), "the search finds what is recorded"


def test_answers_of_the_api_hold_no_secret(ended):
    _, _, client, task = ended
    paths = client.get("/api/openapi.json").json()["paths"]
    answered = 0
    for path, methods in paths.items():
        if "get" not in methods or path.endswith(("/stream", "/live")):
            continue
        known = path.replace("{task_id}", task)
        answer = client.get(known, params={"limit": 1000} if "limit" in str(methods) else None)
        answered += answer.is_success
        assert MARK not in answer.text, known
    assert answered > 15
    with client.stream("GET", "/api/live") as live:
        assert MARK not in next(live.iter_text())
    submitted = client.get(f"/api/tasks/{task}").json()["config"]
    assert submitted["api_key"] == submitted["tracker"]["password"] == "***"
    assert (submitted["layers"], submitted["tracker"]["project"]) == (3, PLAIN)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_output_of_verbs_holds_no_secret(ended, words):
    folder, started, _, task = ended
    words = [word.replace("TASK", task) for word in words]
    known = ["--url", started.http_url] if words[0] != "explain" else []
    done = strata(*words, *known, cwd=folder, STRATA_TOKEN=SETTINGS["token"])
    assert "Traceback" not in done.stderr
    assert "unrecognized" not in done.stderr
    assert done.stdout, done.stderr
    assert MARK not in done.stdout + done.stderr


def test_task_starts_again_only_with_its_secrets(ended):
    _, _, client, task = ended
    env = {"API_KEY": f"value-{MARK}", "PWD": "/"}
    asked = client.post(f"/api/tasks/{task}/restart", json={"env": env})
    assert asked.status_code == 400
    assert "api_key, tracker.password" in asked.json()["error"]["message"]
    secrets = {"api_key": "a", "tracker": {"password": "b"}}
    env["STRATA_SECRET_CONFIG"] = json.dumps(secrets)
    again = client.post(f"/api/tasks/{task}/restart", json={"env": env})
    assert again.status_code == 201, again.text
    path = f"/api/tasks/{again.json()['task_id']}"
    assert client.get(path).json()["config"]["api_key"] == "***"
    ended = ("failed", "completed")
    until(lambda: client.get(path).json()["status"] in ended, "the end of its worker", WAIT_S)


def test_external_task_with_a_secret_is_refused(ended):
    _, _, client, _ = ended
    answer = client.post("/api/tasks", json={"name": "e", "config": {"password": MARK}})
    assert answer.status_code == 400
    assert MARK not in answer.text


def test_log_and_exports_hold_no_secret(ended):
    folder, *_ = ended
    texts = [path for path in leaks_in(folder) if not path.startswith("data/")]
    assert texts == ["strata.toml"], "the settings file is the user's own"
    assert "run.jsonl" in leaks_in(folder, PLAIN)
