"""Guards the command itself: verbs are listed without importing them, errors are sentences."""

import subprocess
import sys

import pytest

from strata import __version__, cli
from strata.errors import NotFound

FITS = 65
"""Characters for a summary in the list of verbs, in a terminal of 80 columns."""


def strata(*arguments, **variables):
    """Run the command as `python -m strata` with these environment variables alone."""
    command = [sys.executable, "-m", "strata", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables)


@pytest.fixture
def one_verb(tmp_path, monkeypatch):
    """A command with one verb, `greet-all`, that accepts only the name Ann."""
    (tmp_path / "greet_all.py").write_text('"""Greet a user.\n\nMore."""\nraise ImportError\n')

    def greet_all(name: str) -> None:
        if name != "Ann":
            raise NotFound(f"nobody is called {name}", hint="try Ann")
        print("hello")

    monkeypatch.setattr(cli, "verb_files", lambda: [tmp_path / "greet_all.py"])
    monkeypatch.setattr(cli, "load_verb", {"greet_all": greet_all}.__getitem__)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["strata", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    return run


def test_version_is_printed():
    ended = strata("--version")
    assert (ended.returncode, ended.stdout) == (0, f"strata {__version__}\n")


def test_unknown_verb_is_an_error_without_traceback():
    ended = strata("no-such-verb")
    assert ended.returncode == 2
    assert "no-such-verb" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_lists_verbs_without_importing_them(one_verb, capsys):
    assert one_verb("--help") == 0
    listed = capsys.readouterr().out
    assert "greet-all  Greet a user." in listed
    assert "More" not in listed


def test_verb_runs(one_verb, capsys):
    assert one_verb("greet-all", "Ann") == 0
    assert capsys.readouterr().out == "hello\n"


def test_error_is_one_sentence_and_a_hint(one_verb, capsys):
    assert one_verb("greet-all", "Bob") == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "strata: nobody is called Bob\nhint: try Ann\n"


def test_every_verb_loads_and_has_a_summary():
    for file in cli.verb_files():
        assert callable(cli.load_verb(file.stem))
        assert 1 < len(cli.summary(file)) <= FITS, f"the list of verbs cuts {file.stem} short"


def completions(words):
    """What bash completion offers for a command line."""
    count = len(words.split()) if words.endswith(" ") else len(words.split()) - 1
    ended = strata(_STRATA_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(count))
    return ended.stdout.split()


def test_verbs_and_their_options_are_completed():
    assert completions("strata work") == ["workers"]
    assert "--status" in completions("strata workers --st")
    assert completions("strata workers --status rec") == ["recovering"]


def test_completion_script_can_be_shown():
    """By the variable: `--show-completion` asks which shell started it, and that may be any."""
    assert "_STRATA_COMPLETE=complete_bash" in strata(_STRATA_COMPLETE="source_bash").stdout
