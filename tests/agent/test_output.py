"""A worker's output bytes become whole, bounded lines."""

import os

from hypothesis import given
from hypothesis import strategies as st

from strata.agent.worker_output import LineAssembler
from strata.sdk.record.output_capture import MAX_LINE_CHARS


class Lines(list):
    def __call__(self, level, message, stream):
        self.append((level, message, stream))


def assembled(*pieces, stream="stdout"):
    lines = Lines()
    assembler = LineAssembler(stream, lines)
    for piece in pieces:
        assembler.feed(piece)
    assembler.close()
    return lines


def test_lines_are_assembled_from_pieces():
    assert [text for _, text, _ in assembled(b"one\ntw", b"o\n", b"three")] == [
        "one",
        "two",
        "three",
    ]


def test_level_is_that_of_the_line_or_the_stream():
    assert assembled(b"x", stream="stderr") == [("warn", "x", "stderr")]
    assert assembled(b"ERROR: x", stream="stdout") == [("error", "ERROR: x", "stdout")]


def test_progress_bar_is_its_last_state_and_empty_lines_are_dropped():
    assert [text for _, text, _ in assembled(b"10%\r50%\r100%\r\n\n\n")] == ["100%"]


def test_undecodable_bytes_are_lines():
    assert len(assembled(b"\xff\xfe\x00\n" + bytes(range(128, 256)))) == 2


def test_output_without_newlines_is_split():
    lines = assembled(*[b"x" * 100_000] * 10)
    assert sum(len(text) for _, text, _ in lines) == 1_000_000
    assert max(len(text) for _, text, _ in lines) <= MAX_LINE_CHARS


@given(st.lists(st.binary(max_size=50)))
def test_lines_do_not_depend_on_how_bytes_are_split(pieces):
    whole = [text for _, text, _ in assembled(b"".join(pieces))]
    assert [text for _, text, _ in assembled(*pieces)] == whole


def test_large_binary_output_becomes_lines():
    data = os.urandom(100_000).replace(b"\n", b"") + b"\n"
    assert len(assembled(*[data] * 50)) >= 50
