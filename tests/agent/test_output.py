"""Guards how a worker's bytes become lines: whole, bounded, whatever they are."""

import os

from hypothesis import given
from hypothesis import strategies as st

from strata.agent.output import Assembler
from strata.sdk.capture import MAX_LINE_CHARS


class Lines(list):
    def __call__(self, level, message, stream):
        self.append((level, message, stream))


def assembled(*pieces, stream="stdout"):
    lines = Lines()
    assembler = Assembler(stream, lines)
    for piece in pieces:
        assembler.feed(piece)
    assembler.close()
    return lines


def test_lines_are_put_together_from_pieces():
    assert [text for _, text, _ in assembled(b"one\ntw", b"o\n", b"three")] == [
        "one",
        "two",
        "three",
    ]


def test_the_stream_says_the_level_unless_the_line_does():
    assert assembled(b"x", stream="stderr") == [("warn", "x", "stderr")]
    assert assembled(b"ERROR: x", stream="stdout") == [("error", "ERROR: x", "stdout")]


def test_a_progress_bar_is_its_last_state_and_empty_lines_are_none():
    assert [text for _, text, _ in assembled(b"10%\r50%\r100%\r\n\n\n")] == ["100%"]


def test_bytes_that_are_no_text_are_still_lines():
    assert len(assembled(b"\xff\xfe\x00\n" + bytes(range(128, 256)))) == 2


def test_output_without_newlines_comes_in_pieces():
    lines = assembled(*[b"x" * 100_000] * 10)
    assert sum(len(text) for _, text, _ in lines) == 1_000_000
    assert max(len(text) for _, text, _ in lines) <= MAX_LINE_CHARS


@given(st.lists(st.binary(max_size=50)))
def test_where_the_pieces_are_cut_makes_no_difference(pieces):
    whole = [text for _, text, _ in assembled(b"".join(pieces))]
    assert [text for _, text, _ in assembled(*pieces)] == whole


def test_much_output_is_taken_in_quickly():
    data = os.urandom(100_000).replace(b"\n", b"") + b"\n"
    assert len(assembled(*[data] * 50)) >= 50
