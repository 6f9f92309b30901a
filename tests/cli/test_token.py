"""`strata token`: the secret is printed once, and is known to a coordinator that takes over."""

import re

import httpx
import pytest

from strata.cli.support.exit_codes import DENIED
from tests.cli.conftest import free_port, started_verb, strata, until

ADMIN = {"STRATA_TOKEN": "the-administrators-token"}


@pytest.fixture
def leader(up):
    up.start("--token", ADMIN["STRATA_TOKEN"])
    return up


@pytest.fixture
def standby(leader, tmp_path):
    """A second coordinator on the same data folder, which takes over when the leader dies."""
    port = free_port()
    given = ("--standby", "--data-dir", "data", "--token", ADMIN["STRATA_TOKEN"])
    ports = ("--grpc-port", str(free_port()), "--http-port", str(port))
    with started_verb("up", *given, *ports, cwd=tmp_path):
        yield f"http://127.0.0.1:{port}"


def status(url, token):
    sent = {"Authorization": f"Bearer {token}"}
    try:
        return httpx.get(f"{url}/api/tasks", headers=sent, trust_env=False).status_code
    except httpx.HTTPError:
        return 0


def test_token_is_printed_once_and_outlives_its_coordinator(leader, standby, tmp_path):
    def run(*arguments, url=leader.url, **variables):
        return strata(*arguments, "--url", url, cwd=tmp_path, **(ADMIN | variables))

    made = run("token", "make", "ci", "--role", "read", "--expires", "30d")
    assert made.returncode == 0, made.stderr
    said, secret = made.stdout.split("\n")[:2]
    assert said == "✓ token ci: role read, expires in 30 d; it is shown only now"
    assert re.fullmatch(r"strata_[A-Za-z0-9_-]{43}", secret)
    listed = run("token", "list").stdout
    assert re.search(r"^ci +read +– +\S.* +in (29|30) d", listed, re.M), listed
    assert secret not in listed

    refused = run("stop", "x-1", STRATA_TOKEN=secret)
    assert refused.returncode == DENIED
    assert "token ci has the role read" in refused.stderr
    assert "needs the role submit or admin" in refused.stderr

    until(lambda: status(standby, secret) == 200)  # a standby follows the log
    assert status(standby, "strata_unknown") == 401
    leader.kill()
    until(lambda: run("token", "revoke", "ci", url=standby).returncode == 0)
    assert status(standby, secret) == 401
    assert secret not in (tmp_path / "data" / "log.db").read_bytes().decode("latin-1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make"], "needs a name"),
        (["make", "ci"], "--role"),
        (["make", "ci", "--role", "read", "--expires", "30"], "use 45m, 12h or 30d"),
        (["list", "ci"], "takes no name"),
        (["revoke", "ci", "--role", "read"], "takes no --role"),
    ],
)
def test_unusable_arguments_are_explained(tmp_path, arguments, said):
    refused = strata("token", *arguments, cwd=tmp_path)
    assert refused.returncode not in (0, 1)
    assert said in refused.stderr
