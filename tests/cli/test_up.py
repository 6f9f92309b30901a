"""Guards `strata up`: a failure at the start is one sentence, and it stops cleanly on a signal."""

import signal
import socket

import httpx
import pytest

from strata.cli.support.exit_codes import REFUSED, UNREACHABLE, USAGE
from tests.cli.conftest import Worker, free_port, strata


def refused(ended, sentence, hint, code=USAGE):
    """Require that stderr ends with one sentence and one hint; log lines may come before."""
    assert ended.returncode == code
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    *_, said, hinted = ended.stderr.splitlines()
    assert said.startswith("strata: ")
    assert sentence in said
    assert hinted.startswith("hint: ")
    assert hint in hinted


def run_up(folder, *arguments, **variables):
    ports = ("--grpc-port", str(free_port()), "--http-port", str(free_port()))
    return strata("up", *ports, *arguments, cwd=folder, **variables)


@pytest.mark.parametrize("flag", ["--grpc-port", "--http-port"])
def test_port_in_use(flag, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        sentence = f"port {port} on 127.0.0.1 is in use"
        refused(run_up(tmp_path, flag, port), sentence, flag, UNREACHABLE)


def test_data_folder_held_by_another_coordinator(up):
    up.start()
    ended = run_up(up.folder, "--data-dir", "data")
    refused(ended, "another coordinator", "", REFUSED)


def test_data_folder_that_is_a_file(tmp_path):
    (tmp_path / "data").write_text("")
    refused(run_up(tmp_path, "--data-dir", "data"), "the data folder data", "--data-dir")


@pytest.mark.parametrize(
    ("variables", "sentence", "hint"),
    [
        ({"STRATA_KEEP_COUNT": "many"}, "keep_count is 'many'", "int"),
        ({"STRATA_KEEP_COUT": "3"}, "unknown setting 'STRATA_KEEP_COUT'", "STRATA_KEEP_COUNT"),
        ({"STRATA_LOG": "coordinator=loud"}, "unknown log level 'loud'", "did you mean"),
        ({"STRATA_HEARTBEAT_TIMEOUT_S": "1"}, "heartbeat_timeout_s (1)", "longer than"),
    ],
)
def test_bad_setting(variables, sentence, hint, tmp_path):
    refused(run_up(tmp_path, **variables), sentence, hint)


def test_invalid_settings_file_is_an_error(tmp_path):
    (tmp_path / "strata.toml").write_text("keep_cuont = 3\n")
    refused(run_up(tmp_path), "unknown setting 'keep_cuont'", "keep_count")


def test_defaults_of_the_contract_have_flags(up):
    wanted = {
        "heartbeat_interval_s": 2.0,
        "heartbeat_timeout_s": 9.0,
        "barrier_timeout_s": 8.0,
        "keep_count": 7,
        "max_workers": 6,
    }
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in wanted.items()]
    up.start(*flags)
    settings = httpx.get(f"{up.url}/api/settings", trust_env=False).json()["values"]
    assert {name: settings[name] for name in wanted} == wanted
    body = {"name": "n", "worker_count": 1}
    task = httpx.post(f"{up.url}/api/tasks", json=body, trust_env=False).json()["task_id"]
    made = httpx.get(f"{up.url}/api/tasks/{task}", trust_env=False).json()
    assert made["keep_count"] == wanted["keep_count"]


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"),
    [
        (["--tls-cert", "no.pem", "--tls-key", "no.pem"], "certificate no.pem", "PEM"),
        (["--tls-cert", "text.pem", "--tls-key", "text.pem"], "certificate text.pem", "PEM"),
        (["--tls-cert", "text.pem"], "both a certificate and a key", "--tls-key"),
    ],
)
def test_unreadable_certificate(arguments, sentence, hint, tmp_path):
    (tmp_path / "text.pem").write_text("no certificate\n")
    refused(run_up(tmp_path, *arguments), sentence, hint)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_coordinator_stops_with_open_sessions_and_streams(up, number):
    running = up.start()
    worker = Worker(up.client(), "w0")
    with httpx.Client(base_url=up.url, trust_env=False) as http:
        streams = [http.stream("GET", f"/api/{path}") for path in ("stream", "logs/stream")]
        with streams[0] as facts, streams[1] as lines:
            assert (facts.status_code, lines.status_code) == (200, 200)
            code = running.end(number)
    assert code == 0, running.err
    assert "Traceback" not in "".join(running.err)
    assert worker.call.code() is not None, "the session was not ended"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_coordinator_stops(up, number):
    assert up.start().end(number) == 0


def test_agent_of_a_finished_run_is_not_up_in_its_folder(up):
    script = "import strata\nwith strata.join():\n    pass\n"
    (up.folder / "train.py").write_text(script, "utf-8")
    ended = strata("run", "train.py", "--data-dir", "data", cwd=up.folder)
    assert ended.returncode == 0, ended.stderr
    up.start()
    agents = httpx.get(f"{up.url}/api/agents").json()
    assert [(agent["id"], agent["up"]) for agent in agents] == [("local", False)]
