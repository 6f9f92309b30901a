"""Guards the command's frame: verbs are found but not imported, errors are sentences."""

import subprocess
import sys

import pytest

from strata import __version__, cli
from strata.errors import NotFound

FITS = 65
"""What the list of verbs has room for in a terminal of 80 columns."""


def strata(*arguments):
    command = [sys.executable, "-c", "from strata.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def one_verb(tmp_path, monkeypatch):
    """A command line of one verb, `greet-all`, that refuses every name but Ann."""
    (tmp_path / "greet_all.py").write_text('"""Greet somebody.\n\nMore."""\nraise ImportError\n')

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


def test_version():
    ended = strata("--version")
    assert (ended.returncode, ended.stdout) == (0, f"strata {__version__}\n")


def test_an_unknown_verb_is_refused_without_a_traceback():
    ended = strata("no-such-verb")
    assert ended.returncode == 2
    assert "no-such-verb" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_lists_verbs_without_importing_them(one_verb, capsys):
    assert one_verb("--help") == 0
    listed = capsys.readouterr().out
    assert "greet-all  Greet somebody." in listed
    assert "More" not in listed


def test_a_verb_runs(one_verb, capsys):
    assert one_verb("greet-all", "Ann") == 0
    assert capsys.readouterr().out == "hello\n"


def test_an_error_is_one_sentence_and_a_hint(one_verb, capsys):
    assert one_verb("greet-all", "Bob") == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "strata: nobody is called Bob\nhint: try Ann\n"


def test_every_verb_can_be_loaded_and_is_described():
    for file in cli.verb_files():
        assert callable(cli.load_verb(file.stem))
        assert 1 < len(cli.summary(file)) <= FITS, f"the list of verbs cuts {file.stem} short"
