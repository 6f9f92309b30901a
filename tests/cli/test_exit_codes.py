"""Guards the exit codes: one table, one code for each kind of error, JSON with `--json`."""

import json
import re
import sys
from pathlib import Path

import pytest

from strata import cli
from strata.cli.support import exit_codes
from strata.cli.support.terminal import Guarded
from strata.core.tasks.task_lifecycle import RESTART_LOOP_EXIT_CODE, UNSAVED_EXIT_CODE
from strata.errors import STATUS, StrataError
from tests.cli.conftest import free_port, strata

DOCS = Path(__file__).parents[2] / "docs" / "COMMAND_LINE.md"
TITLE = "\x1b]0;taken over\x07"
WITH_JSON = sorted(
    file.stem for file in cli.verb_files() if "as_json: AsJson" in file.read_text("utf-8")
)
ARGUMENTS = {
    "at": ["end"],
    "audit": ["task"],
    "dataset": ["add", "d", "--samples", "10", "--shard-size", "5"],
    "diff": ["start", "end"],
    "metrics": ["task"],
    "preview": ["d"],
    "continue": ["task"],
    "fork": ["task"],
    "resize": ["task", "--workers", "2"],
    "restart": ["task"],
    "stacks": ["task"],
    "stop": ["task"],
    "story": ["task:a"],
    "submit": ["train.py"],
    "why": ["trust"],
}
LOCAL = {"doctor", "explain", "runs", "salvage", "sim", "sql", "export"}


def test_documented_table_is_that_of_the_command():
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == exit_codes.MEANINGS


def test_help_lists_every_code(tmp_path):
    shown = strata("--help", cwd=tmp_path).stdout
    for code, meaning in exit_codes.MEANINGS.items():
        assert re.search(rf"^ +{code}  {re.escape(meaning)}$", shown, re.MULTILINE)


def test_codes_of_tasks_are_those_of_the_rules():
    assert exit_codes.RESTART_LOOP == RESTART_LOOP_EXIT_CODE
    assert exit_codes.UNSAVED == UNSAVED_EXIT_CODE


def test_every_error_has_a_documented_code():
    for kind in STATUS:
        assert exit_codes.code_of(kind("it happened")) in exit_codes.MEANINGS
        if kind is not StrataError:
            assert exit_codes.code_of(kind("it happened")) > 1, kind


def json_error(ended):
    """The error that a verb wrote as JSON."""
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    error = json.loads(line)["error"]
    assert error["exit_code"] == ended.returncode
    assert error["message"]
    return error


@pytest.mark.parametrize("verb", [verb for verb in WITH_JSON if verb not in LOCAL])
def test_unreachable_coordinator_is_an_error_in_json(verb, tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "d").mkdir()
    url = f"http://127.0.0.1:{free_port()}"
    arguments = ARGUMENTS.get(verb, [])
    ended = strata(verb, *arguments, "--json", "--url", url, cwd=tmp_path)
    assert json_error(ended)["code"] == "unavailable", ended.stderr
    assert ended.returncode == exit_codes.UNREACHABLE


@pytest.mark.parametrize("verb", WITH_JSON)
def test_unknown_option_is_an_error_in_json(verb, tmp_path):
    ended = strata(verb, "--json", "--no-such-option", cwd=tmp_path)
    assert json_error(ended)["code"] == "invalid_argument"
    assert ended.returncode == exit_codes.USAGE


@pytest.mark.parametrize(
    "arguments",
    [
        ["timeline", "--data", "nowhere"],
        ["audit", "task", "--data", "nowhere"],
        ["why", "trust", "--data", "nowhere"],
        ["salvage", "nowhere"],
        ["diff", ".", "/nowhere"],
        ["diff", "/nowhere", "@120"],
    ],
    ids=" ".join,
)
def test_missing_run_is_not_found(arguments, tmp_path):
    assert json_error(strata(*arguments, "--json", cwd=tmp_path))["code"] == "not_found"
    assert strata(*arguments, cwd=tmp_path).returncode == exit_codes.NOT_FOUND


def test_unknown_task_is_not_found_and_a_wrong_token_is_denied(cluster):
    assert cluster.run("stop", "none").returncode == exit_codes.NOT_FOUND
    assert json_error(cluster.run("stop", "none", "--json"))["code"] == "not_found"
    assert "there is no task 'none'" in cluster.run("stacks", "none").stderr
    assert json_error(cluster.run("tasks", "--json", "--limit", "0"))["code"] == "invalid_argument"


def test_results_of_writing_verbs_are_json(cluster):
    (cluster.folder / "train.py").write_text("")
    submitted = json.loads(cluster.run("submit", "train.py", "--json").stdout)
    task = submitted["task_id"]
    assert json.loads(cluster.run("stop", task, "--json").stdout)["status"] == "stopped"
    assert json.loads(cluster.run("restart", task, "--json").stdout)["task_id"] != task


def test_remark_on_a_cut_list_is_json(cluster):
    for name in ("a", "b"):
        cluster.client.register(name)
    ended = cluster.run("workers", "--limit", "1", "--json")
    assert len(ended.stdout.splitlines()) == 1
    assert "shows all" in json.loads(ended.stderr)["note"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["timeline", "--data", TITLE],
        ["audit", TITLE, "--data", TITLE],
        ["runs", TITLE],
        ["salvage", TITLE],
        ["run", TITLE],
        ["status", "--url", TITLE],
        ["status", "--url", "http://127.0.0.1:1", TITLE],
        ["stop", TITLE, "--url", "http://127.0.0.1:1"],
        [TITLE],
        ["workers", f"--{TITLE}"],
    ],
    ids=lambda arguments: arguments[0] if arguments[0] != TITLE else "verb",
)
@pytest.mark.parametrize("as_json", [False, True])
def test_no_argument_reaches_the_terminal_as_an_escape(arguments, as_json, tmp_path):
    more = ["--json"] if as_json else []
    ended = strata(*arguments, *more, cwd=tmp_path, FORCE_COLOR="1")
    written = ended.stdout + ended.stderr
    assert "\x07" not in written
    assert "\x1b]" not in written


def test_folder_with_an_escape_in_its_name_is_listed_harmlessly(tmp_path):
    folder = tmp_path / TITLE.replace("/", "")
    folder.mkdir()
    ended = strata("runs", str(folder), cwd=tmp_path, FORCE_COLOR="1", COLUMNS="300")
    assert "\x1b]" not in ended.stdout + ended.stderr
    assert "\\x1b]0;taken" in ended.stdout


def test_guarded_stream_lets_colours_pass_and_nothing_else():
    written = []

    class Stream:
        def write(self, text):
            written.append(text)

    Guarded(Stream()).write("\x1b[31mred\x1b[0m \x1b[2J\x1b]0;t\x07\r\x9b1A é\n\t")
    assert written == ["\x1b[31mred\x1b[0m \\x1b[2J\\x1b]0;t\\x07\\x0d\\x9b1A é\n\t"]


def test_control_characters_in_errors_are_escaped(tmp_path, monkeypatch, capsys):
    (tmp_path / "fail.py").write_text('"""Fail."""\n')

    def fail() -> None:
        raise OSError(2, "No such file", f"{TITLE}.db")

    monkeypatch.setattr(cli, "verb_files", lambda: [tmp_path / "fail.py"])
    monkeypatch.setattr(cli, "load_verb", {"fail": fail}.__getitem__)
    monkeypatch.setattr(sys, "argv", ["strata", "fail"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == exit_codes.NOT_FOUND
    assert "\\x1b]0;taken over\\x07.db" in capsys.readouterr().err
