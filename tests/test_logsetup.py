"""Log filter syntax, and the format of a process's log on stderr."""

import io
import json
import logging
import os
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest

from strata.config import Settings, from_environ
from strata.errors import SettingError
from strata.logsetup import JsonFormatter, LogFilter, configure, parse_filter


@pytest.fixture
def setup():
    """Configure logging to a text buffer; restore it afterwards."""
    root = logging.getLogger()
    before = root.level, list(root.handlers)

    def set_up(log_filter="info", log_format="text", stream=None):
        stream = stream or io.StringIO()
        settings = Settings(log_filter=log_filter, log_format=log_format)
        configure(settings, "coordinator", stream)
        return stream

    yield set_up
    configure(Settings(), "coordinator", io.StringIO())
    root.setLevel(before[0])
    root.handlers = before[1]


@pytest.mark.parametrize(
    ("text", "default", "packages"),
    [
        ("", 20, {}),
        ("debug", 10, {}),
        ("coordinator=debug,storage=debug,info", 20, {"coordinator": 10, "storage": 10}),
        (" warn , store = error ", 30, {"store": 40}),
        ("ERROR,strata.wire=Trace", 40, {"wire": 10}),
        ("strata::coordinator::engine=debug,off", 60, {"coordinator.engine": 10}),
        ("strata=debug", 20, {"": 10}),
        ("info,debug", 10, {}),
    ],
)
def test_filter_syntax(text, default, packages):
    assert parse_filter(text) == LogFilter(default, packages)


@pytest.mark.parametrize(
    ("text", "closest"),
    [("inof", "info"), ("coordinator=debgu,info", "debug"), ("coordinator", ""), ("a=", "")],
)
def test_unknown_level_error_suggests_the_closest(text, closest):
    with pytest.raises(SettingError) as refused:
        parse_filter(text)
    assert f"did you mean {closest}" in refused.value.hint
    assert repr(text) in refused.value.message


def test_rust_log_is_used_if_strata_log_is_not_set():
    assert from_environ({"RUST_LOG": "wire=debug"})["log_filter"] == "wire=debug"
    both = {"RUST_LOG": "wire=debug", "STRATA_LOG": "error"}
    assert from_environ(both)["log_filter"] == "error"


def test_levels_by_package(setup):
    output = setup("coordinator=debug,store=error,warn")
    for name in (
        "strata.coordinator.engine.engine",
        "strata.store.sqlite",
        "strata.wire",
        "uvicorn",
    ):
        for level in (10, 20, 30, 40):
            logging.getLogger(name).log(level, "%s %d", name, level)
    shown = [line.split()[-2:] for line in output.getvalue().splitlines()]
    assert shown == [
        *(["strata.coordinator.engine.engine", str(level)] for level in (10, 20, 30, 40)),
        ["strata.store.sqlite", "40"],
        *(["strata.wire", str(level)] for level in (30, 40)),
        *(["uvicorn", str(level)] for level in (30, 40)),
    ]


def test_second_configure_replaces_the_first(setup):
    first = setup("coordinator=debug")
    second = setup("warn")
    logging.getLogger("strata.coordinator").debug("hidden")
    logging.getLogger("strata.coordinator").warning("shown once")
    assert first.getvalue() == ""
    assert second.getvalue().count("shown once") == 1
    assert "hidden" not in second.getvalue()


def test_text_format(setup):
    output = setup()
    logging.getLogger("strata.coordinator.engine.engine").info("listening on %s", "127.0.0.1:50051")
    time, level, package, rest = output.getvalue().split(maxsplit=3)
    assert len(time) == len("12:34:56.789")
    assert (level, package, rest) == ("INFO", "coordinator", "listening on 127.0.0.1:50051\n")


def test_control_characters_and_newlines_are_escaped(setup):
    output = setup()
    logging.getLogger("strata.wire").warning("\x1b[2J\x9b31m evil\n12:00:00 ERROR fake")
    first, second = output.getvalue().splitlines()
    assert "\\x1b[2J\\x9b31m evil" in first
    assert second == "    12:00:00 ERROR fake"


def test_json_format_has_the_fields_of_a_log_entry(setup):
    output = setup(log_format="json")
    logger = logging.getLogger("strata.coordinator")
    logger.error("a\nb", extra={"task_id": "t", "worker_id": "w"})
    (line,) = output.getvalue().splitlines()
    entry = json.loads(line)
    assert isinstance(entry.pop("timestamp"), int)
    assert entry == {
        "level": "error",
        "message": "a\nb",
        "source": "coordinator",
        "logger": "strata.coordinator",
        "task_id": "t",
        "worker_id": "w",
    }


def test_unencodable_text_can_be_logged():
    record = logging.makeLogRecord({"msg": "lone \ud800 surrogate", "levelno": 20})
    assert json.loads(JsonFormatter("agent").format(record))["message"] == "lone ? surrogate"


def test_full_disk_is_reported_once_without_traceback(setup, capsys):
    with suppress(OSError), open("/dev/full", "w", buffering=1) as full:
        setup(stream=full)
        for number in range(3):
            logging.getLogger("strata.store").info("line %d", number)
        assert capsys.readouterr().err == (
            "the log cannot be written (No space left on device): line 0\n"
        )


PROGRAM = """
    import logging, sys
    from strata.config import load_process
    from strata.logsetup import configure
    configure(load_process({}), "coordinator")
    logging.getLogger("strata.store").debug("fine detail")
    logging.getLogger("strata.wire").debug("hidden")
"""


def run_on(stderr, **environ):
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STRATA")}
    return subprocess.run(program, env=plain | environ, stderr=stderr, check=True, text=True)


def test_environment_configures_a_process():
    shown = run_on(subprocess.PIPE, STRATA_LOG="store=debug,info", LOG_FORMAT="json")
    assert [json.loads(line)["message"] for line in shown.stderr.splitlines()] == ["fine detail"]


def test_colours_only_on_a_terminal():
    assert "\x1b" not in run_on(subprocess.PIPE, STRATA_LOG="store=debug").stderr
    ours, theirs = os.openpty()
    run_on(theirs, STRATA_LOG="store=debug")
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert "\x1b[2mDEBUG\x1b[0m" in shown
