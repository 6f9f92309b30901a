"""Guards shell completion, in bash itself: verbs, options, and ids that the coordinator knows."""

import shutil
import subprocess
import sys

import pytest

from tests.cli.conftest import environment, free_port

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")

# Loads what `--install-completion` installs, and completes a line as a press of Tab does.
COMPLETE = """
source "$HOME/.bashrc"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
COMP_LINE="$*"
_strata_completion strata "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder in which bash has the completion of `strata`, and `strata` itself."""
    home = tmp_path_factory.mktemp("home")
    program = home / "bin" / "strata"
    program.parent.mkdir()
    code = "from strata.cli import main; main()"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    command = [str(program), "--install-completion", "bash"]
    done = subprocess.run(command, env=variables(home), cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (home / ".bashrc").exists()
    return home


def variables(home, **given):
    # Without the second variable, the shell that runs the tests decides what is installed.
    own = {"HOME": str(home), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    return environment(PATH=f"{home / 'bin'}:/usr/bin:/bin", **own, **given)


def completed(home, *words, **given):
    ended = subprocess.run(
        [BASH, "--norc", "-c", COMPLETE, "bash", *words],
        env=variables(home, **given),
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert ended.stderr == ""
    return ended.stdout.split()


def test_bash_completes_verbs_and_options(home):
    assert completed(home, "strata", "doc") == ["doctor"]
    assert completed(home, "strata", "init", "--templ") == ["--template"]
    assert completed(home, "strata", "init", "--template", "h") == ["hf"]


def test_bash_completes_ids_of_the_coordinator(home, cluster):
    body = {"name": "first", "entry": "/x.py", "worker_count": 1}
    task = cluster.http.post("/api/tasks", json=body).json()["task_id"]
    cluster.client.register("ann")
    port = {"STRATA_HTTP_PORT": cluster.url.rpartition(":")[2]}
    assert completed(home, "strata", "stop", "fi", **port) == [task]
    assert completed(home, "strata", "logs", "--worker", "a", **port) == ["ann"]
    assert completed(home, "strata", "logs", "--task", "second", **port) == []


def test_ids_are_those_of_the_coordinator_that_the_line_names(home, cluster):
    """By the protocol of zsh: bash divides the words of a line at colons, as in a URL."""
    body = {"name": "first", "entry": "/x.py", "worker_count": 1}
    task = cluster.http.post("/api/tasks", json=body).json()["task_id"]
    line = f"strata stop --url {cluster.url} fi"
    given = {"_STRATA_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    ended = subprocess.run(
        [home / "bin" / "strata"],
        env=variables(home, **given),
        capture_output=True,
        text=True,
        cwd=home,
    )
    assert task in ended.stdout, ended.stderr


def test_completion_without_a_coordinator_offers_nothing(home):
    assert completed(home, "strata", "stop", "", STRATA_HTTP_PORT=str(free_port())) == []
