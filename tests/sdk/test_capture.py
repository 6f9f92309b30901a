"""Output capture: everything is captured once, in whole lines with its level, without affecting the
script, at a low cost."""

import contextlib
import io
import logging
import os
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

from strata.sdk.record.output_capture import MAX_LINE_CHARS, capture_output, level_of


class Script:
    """Replaced standard streams and a capture, with the lines that its sink got."""

    def __init__(self, sink=None):
        self.lines = []
        self.out, self.err = io.StringIO(), io.StringIO()
        self.sink = sink or (lambda *line: self.lines.append(line))

    @property
    def messages(self):
        return [message for _, message, _ in self.lines]

    def __enter__(self):
        self._streams = contextlib.ExitStack()
        self._streams.enter_context(contextlib.redirect_stdout(self.out))
        self._streams.enter_context(contextlib.redirect_stderr(self.err))
        self.capture = capture_output(self.sink)
        return self

    def __exit__(self, *error):
        self.capture.restore()
        self._streams.close()


def a_logger(name):
    """A logger of the script without other handlers."""
    logger = logging.getLogger(f"script.{name}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return logger


def test_lines_are_captured_and_still_written():
    with Script() as script:
        print("hello", 1)
        print("oh no", file=sys.stderr)
    assert script.lines == [("info", "hello 1", "stdout"), ("warn", "oh no", "stderr")]
    assert (script.out.getvalue(), script.err.getvalue()) == ("hello 1\n", "oh no\n")


def test_sink_gets_only_whole_lines():
    with Script() as script:
        sys.stdout.write("a")
        sys.stdout.write("b\nc\n\nd")
        assert script.messages == ["ab", "c"]
        sys.stdout.writelines(["e", "\n"])
        assert script.messages == ["ab", "c", "de"]


def test_unfinished_line_is_captured_at_the_end():
    with Script() as script:
        sys.stdout.write("no newline")
        assert script.lines == []
    assert script.lines == [("info", "no newline", "stdout")]


def test_progress_bar_is_one_line():
    with Script() as script:
        for percent in range(101):
            sys.stderr.write(f"\r{percent}%")
            sys.stderr.flush()
        sys.stderr.write("\n")
        print("windows\r")
    assert script.messages == ["100%", "windows"]


def test_very_long_line_is_split():
    with Script() as script:
        for _ in range(5):
            sys.stdout.write("x" * 40_000)
        sys.stdout.write("\n")
    assert "".join(script.messages) == "x" * 200_000
    assert max(map(len, script.messages)) <= MAX_LINE_CHARS


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("INFO: all is well", "info"),
        ("WARNING:root:careful", "warn"),
        ("[ERROR] it broke", "error"),
        ("ERROR", "error"),
        ("CRITICAL - it burns", "error"),
        ("DEBUG details", "debug"),
        ("Information is not a level", "warn"),
        ("INFORMATION neither", "warn"),
        ("an ERROR: in the middle", "warn"),
    ],
)
def test_level_is_read_from_the_start_of_a_line(line, level):
    assert level_of(line, "stderr") == level


def test_records_are_captured_with_their_level():
    with Script() as script:
        a_logger("levels").debug("detail")
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            a_logger("levels").exception("failed")
    assert script.lines[0] == ("debug", "detail", "logging")
    assert script.lines[1][0] == "error"
    assert script.messages[1].endswith("RuntimeError: boom")


@pytest.mark.parametrize("propagate", [True, False])
def test_record_that_is_also_printed_is_captured_once(propagate):
    logger = a_logger("printed")
    logger.propagate = propagate
    with Script() as script:
        handler = logging.StreamHandler(sys.stderr)
        logger.addHandler(handler)
        logger.error("only once")
        logger.removeHandler(handler)
    assert script.lines == [("error", "only once", "logging")]
    assert script.err.getvalue() == "only once\n"


def test_record_with_wrong_arguments_is_captured_unformatted():
    with Script() as script:
        a_logger("bad").error("%d apples", "many")
    assert script.lines == [("error", "%d apples ('many',)", "logging")]


SCRIPT = """
    import logging, sys
    from strata.sdk.record.output_capture import capture_output
    taken = []
    with capture_output(lambda *line: taken.append(line)):
        logging.warning("before it is set up")
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", force={force})
        logging.info("after")
    logging.info("not captured")
    print(taken)
"""


def test_logging_of_the_script_works_as_without_capture():
    program = textwrap.dedent(SCRIPT).format(force=True)
    told = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert told.stderr.splitlines()[-2:] == ["INFO after", "INFO not captured"]
    assert eval(told.stdout) == [
        ("warn", "before it is set up", "logging"),
        ("info", "after", "logging"),
    ]


def test_warnings_are_captured():
    with Script() as script:
        print_warning = warnings.formatwarning("old way", DeprecationWarning, "train.py", 3)
        sys.stderr.write(print_warning)
    assert script.messages == ["train.py:3: DeprecationWarning: old way"]


def test_threads_do_not_mix_their_lines():
    def say(name):
        for i in range(500):
            sys.stdout.write(f"{name} ")
            sys.stdout.write(f"{i}\n")

    threads = [threading.Thread(target=say, args=(f"t{n}",)) for n in range(8)]
    with Script() as script:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = sorted(f"t{n} {i}" for n in range(8) for i in range(500))
    assert sorted(script.messages) == expected


def test_output_of_the_sink_is_not_captured():
    heard = []

    def sink(level, message, stream):
        heard.append(message)
        print("sent:", message)
        a_logger("sink").warning("sent")

    with Script(sink) as script:
        print("hello")
    assert heard == ["hello"]
    assert script.out.getvalue() == "hello\nsent: hello\n"


def test_failing_sink_does_not_break_print():
    def sink(level, message, stream):
        raise OSError("queue is gone")

    with Script(sink) as script:
        print("hello")
        print("again")
    assert script.out.getvalue() == "hello\nagain\n"
    assert script.capture.failures == 2


def test_restore_removes_all_wrappers():
    streams, handlers = (sys.stdout, sys.stderr), logging.Logger.callHandlers
    with capture_output(lambda *line: None) as capture:
        assert sys.stdout is not streams[0]
        assert logging.Logger.callHandlers is not handlers
    assert (sys.stdout, sys.stderr, logging.Logger.callHandlers) == (*streams, handlers)
    capture.restore()
    assert (sys.stdout, sys.stderr) == streams


def test_captures_may_nest_and_end_in_any_order():
    inner = []
    with Script() as script:
        second = capture_output(lambda *line: inner.append(line[1]))
        print("both")
        script.capture.restore()
        print("second only")
        second.restore()
        print("none")
    assert (script.messages, inner) == (["both"], ["both", "second only"])
    assert script.out.getvalue() == "both\nsecond only\nnone\n"


def test_wrapper_of_the_script_is_kept():
    with Script() as script:
        inside = io.StringIO()
        with contextlib.redirect_stdout(inside):
            print("elsewhere")
            script.capture.restore()
        print("after")
    assert inside.getvalue() == "elsewhere\n"
    assert script.out.getvalue() == "after\n"
    assert script.lines == []


def test_stream_has_the_attributes_of_the_original():
    out = sys.__stdout__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        with capture_output(lambda *line: None):
            assert sys.stdout.isatty() == out.isatty()
            assert sys.stdout.encoding == out.encoding
            assert sys.stdout.fileno() == out.fileno()
            assert sys.stdout.buffer is out.buffer


def test_process_without_streams_can_be_captured(monkeypatch):
    lines = []
    monkeypatch.setattr(sys, "stdout", None)
    with capture_output(lambda *line: lines.append(line)):
        print("nowhere")
        a_logger("none").error("here")
    assert sys.stdout is None
    assert lines == [("error", "here", "logging")]


FORK = """
    import os, sys
    from strata.sdk.record.output_capture import capture_output
    calls = []
    with capture_output(lambda *line: calls.append(line[1])):
        child = os.fork()
        if not child:
            print("from the child", flush=True)
            os._exit(len(calls))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("from the parent")
    print(code, calls)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_child_is_not_captured():
    command = [sys.executable, "-c", textwrap.dedent(FORK)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    assert told.stdout.splitlines() == [
        "from the child",
        "from the parent",
        "0 ['from the parent']",
    ]
