"""Guards `strata doctor`: each line is measured on real parts and says what to do about a fault."""

import json
import os
import socket
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from strata.cli.support.doctor.storage_checks import FOLDER, bucket_checks
from strata.storage.s3 import S3Storage
from tests.cli.conftest import MAIN, environment, free_port, strata
from tests.cli.runs import python_without
from tests.storage.server import BUCKET, KEY, SECRET, Server, settings_for

FREE = {"STRATA_GRPC_PORT": "0", "STRATA_HTTP_PORT": "0"}


def doctor(folder, *arguments, **variables):
    """The checks by name, and the exit code."""
    ended = strata("doctor", "--json", *arguments, cwd=folder, **variables)
    assert "Traceback" not in ended.stderr
    found = {check["name"]: check for check in map(json.loads, ended.stdout.splitlines())}
    assert found, ended.stderr
    wrong = [check for check in found.values() if check["status"] == "fix"]
    assert all(check["fix"] for check in wrong), "each says what to do"
    assert ended.returncode == (1 if wrong else 0), wrong
    return found


def test_machine_without_a_coordinator_has_nothing_to_fix(tmp_path):
    found = doctor(tmp_path, **FREE)
    assert found["coordinator"]["status"] == "not checked"
    assert found["fork"]["status"] == found["open files"]["status"] == "ok"
    speed = found["folder strata-data/checkpoints speed"]
    assert "MiB/s with fsync" in speed["found"]
    assert found["versions"]["found"].startswith("Python 3.")
    assert list(tmp_path.iterdir()) == []
    shown = strata("doctor", cwd=tmp_path, **FREE)
    assert shown.returncode == 0
    assert "nothing to fix, " in shown.stdout


def test_coordinator_ports_token_and_clock_are_checked(up):
    up.start("--token", "secret")
    ports = {"STRATA_GRPC_PORT": str(up.grpc_port), "STRATA_HTTP_PORT": str(up.http_port)}
    found = doctor(up.folder, STRATA_TOKEN="secret", **ports)
    for name in ("coordinator", "token", "release", "gRPC address", "clock"):
        assert found[name]["status"] == "ok", found[name]
    for name in (f"grpc_port {up.grpc_port}", f"http_port {up.http_port}"):
        assert found[name]["status"] == "ok"
        assert f"used by the coordinator, python (pid {up.running.process.pid})" in (
            found[name]["found"].replace("python3", "python")
        )
    denied = doctor(up.folder, STRATA_TOKEN="wrong", **ports)["token"]
    assert (denied["status"], denied["found"]) == (
        "fix",
        f"the coordinator at {up.url} rejected the token",
    )


def test_host_of_workers_needs_no_libraries_of_a_coordinator(tmp_path):
    without = ("uvicorn", "litestar", "obstore", "pyarrow", "hpack", "google_re2", "re2")
    python, variables = python_without(tmp_path, *without)
    command = [python, "-m", "strata", "doctor", "--json"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=variables | {"STORAGE_BACKEND": "s3", "CHECKPOINT_BUCKET": "b"},
        capture_output=True,
        text=True,
    )
    found = {check["name"]: check for check in map(json.loads, ended.stdout.splitlines())}
    assert ended.returncode == 1, ended.stderr
    assert found["http_port 3000"]["status"] == "not checked"
    assert found["open files"]["status"] == "ok"
    assert found["bucket b"]["fix"] == "pip install 'strata-runtime[s3]'"


def test_named_coordinator_that_does_not_answer_must_be_fixed(tmp_path):
    found = doctor(tmp_path, "--url", f"http://127.0.0.1:{free_port()}", **FREE)
    assert found["coordinator"]["status"] == "fix"
    assert "strata up" in found["coordinator"]["fix"]


def test_port_of_another_process_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = doctor(tmp_path, STRATA_GRPC_PORT=str(port), STRATA_HTTP_PORT="0")
    check = found[f"grpc_port {port}"]
    assert check["status"] == "fix"
    assert check["fix"] == f"kill {os.getpid()}, or set grpc_port in strata.toml"


class LateClock(BaseHTTPRequestHandler):
    """Forwards requests to a coordinator, with the date of a clock that is 90 s ahead."""

    target = ""

    def do_GET(self):
        answer = httpx.get(f"{self.target}{self.path}", trust_env=False)
        self.send_response_only(answer.status_code)
        ahead = datetime.now(UTC) + timedelta(seconds=90)
        self.send_header("Date", format_datetime(ahead, usegmt=True))
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_):
        pass


def test_clock_that_is_behind_is_found(cluster):
    LateClock.target = cluster.url
    with ThreadingHTTPServer(("127.0.0.1", 0), LateClock) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.02,)).start()
        found = doctor(cluster.folder, "--url", f"http://127.0.0.1:{proxy.server_port}", **FREE)
        proxy.shutdown()
    clock = found["clock"]
    assert clock["status"] == "fix"
    assert "s behind the coordinator's" in clock["found"]
    behind_s = float(clock["found"].split("at least ")[1].split(" s ")[0])
    assert 85 < behind_s <= 90


def test_small_limits_of_the_process_are_found(tmp_path):
    limited = 'ulimit -n 140; ulimit -f 1000000; exec "$@"'
    ended = subprocess.run(
        ["sh", "-c", limited, "sh", *MAIN, "doctor"],
        cwd=tmp_path,
        env=environment(**FREE),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended.stdout
    assert "the hard limit is 140, enough for" in ended.stdout
    assert "→ raise it: ulimit -Hn 65536" in ended.stdout
    assert "→ ulimit -f unlimited" in ended.stdout


def test_outdated_package_is_found_with_the_command(tmp_path):
    old = tmp_path / "old" / "xxhash-1.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: xxhash\nVersion: 1.0\n")
    found = doctor(tmp_path, PYTHONPATH=str(old.parent), **FREE)
    assert found["xxhash"]["found"].startswith("1.0 is older than ")
    assert "-m pip install 'xxhash>=" in found["xxhash"]["fix"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may write to every folder")
def test_folder_that_cannot_be_written_is_found(tmp_path):
    tmp_path.chmod(0o500)
    found = doctor(tmp_path, **FREE)
    assert found["folder strata-data/checkpoints"]["status"] == "fix"


def test_file_in_place_of_the_folder_is_found(tmp_path):
    (tmp_path / "strata-data").write_text("")
    found = doctor(tmp_path, **FREE)
    assert "is a file" in found["folder strata-data/checkpoints"]["found"]


ACTIONS = {
    "reader": (["Read", "List"], {"s3:PutObject", "s3:DeleteObject"}),
    "writer": (["Write"], {"s3:ListBucket", "s3:GetObject"}),
    "lister": (["List"], {"s3:PutObject", "s3:GetObject", "s3:DeleteObject"}),
    "nobody": (["Read:elsewhere"], {"s3:ListBucket", "s3:PutObject", "s3:DeleteObject"}),
}
"""What an identity of the server may do, and the permissions that doctor must find missing."""


@pytest.fixture(scope="module")
def restricted(tmp_path_factory):
    """An S3 server with identities that lack permissions."""
    folder = tmp_path_factory.mktemp("s3")
    identities = [identity("admin", KEY, SECRET, ["Admin", "Read", "Write", "List"])]
    for name, (actions, _) in ACTIONS.items():
        own = [each if ":" in each else f"{each}:{BUCKET}" for each in actions]
        identities.append(identity(name, name, f"{name}-secret", own))
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": identities}))
    server = Server(folder, f"-s3.config={config}")
    yield server.settings
    server.kill()


def identity(name, key, secret, actions):
    return {
        "name": name,
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": actions,
    }


@pytest.mark.parametrize("name", ACTIONS)
def test_each_missing_permission_on_a_bucket_is_named(restricted, name):
    port = int(restricted.aws_endpoint_url.rpartition(":")[2])
    secret = f"{name}-secret"
    settings = settings_for(port, aws_access_key_id=name, aws_secret_access_key=secret)
    found = bucket_checks(f"s3://{BUCKET}/runs", settings)
    missing = {check.name.partition(" ")[0] for check in found if check.status == "fix"}
    assert missing == ACTIONS[name][1], found
    assert len(found) == 4
    for check in found:
        if check.status == "fix":
            permission = check.name.partition(" ")[0]
            assert check.fix.startswith(f"grant {permission} on arn:aws:s3:::{BUCKET}")


def test_bucket_with_all_permissions_is_ok_and_left_clean(restricted, tmp_path):
    variables = {
        "STORAGE_BACKEND": "s3",
        "CHECKPOINT_BUCKET": BUCKET,
        "AWS_ENDPOINT_URL": restricted.aws_endpoint_url,
        "AWS_REGION": restricted.aws_region,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    found = doctor(tmp_path, **FREE, **variables)
    granted = [each for name, each in found.items() if name.startswith("s3:")]
    assert [each["status"] for each in granted] == ["ok"] * 4
    assert S3Storage(BUCKET, settings=restricted).walk(FOLDER) == []
    missing = doctor(tmp_path, **FREE, **variables | {"CHECKPOINT_BUCKET": "no-such-bucket"})
    assert "there is no bucket no-such-bucket" in missing["s3:ListBucket on no-such-bucket"]["fix"]
    assert missing["s3:GetObject on no-such-bucket"]["status"] == "not checked"
