"""Guards that any line a process can write becomes an entry that can be stored and shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.coordinator.logs.entries import (
    MAX_MESSAGE_BYTES,
    MAX_NAME_CHARS,
    Line,
    decode_line,
    encode_lines,
    make,
    seq_of,
)

ANY_TEXT = st.text(st.characters(codec=None), max_size=40)
NOW_MS = 1_715_832_000_000


def kept(line):
    entry = make(7, line, NOW_MS)
    (stored,) = encode_lines([entry]).splitlines()
    assert decode_line(stored) == entry
    return entry


def test_an_entry_reads_as_the_contract_says():
    line = Line("info", "Checkpoint persisted", "worker", "run-1", "gpu-05", "stdout", NOW_MS)
    assert json.loads(encode_lines([make(0x8F2D1B, line, 0)])) == {
        "id": "log_8f2d1b",
        "timestamp": NOW_MS,
        "level": "info",
        "message": "Checkpoint persisted",
        "source": "worker",
        "task_id": "run-1",
        "worker_id": "gpu-05",
        "stream": "stdout",
    }


@given(st.one_of(ANY_TEXT, st.binary(max_size=40)), ANY_TEXT, ANY_TEXT, ANY_TEXT, st.integers())
def test_whatever_comes_in_can_be_stored(message, level, name, stream, timestamp):
    entry = kept(Line(level, message, name, name, name, stream, timestamp))
    assert entry.level in ("error", "warn", "info", "debug")
    assert 0 < entry.timestamp < 2**53


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "\x1b[31mred\x1b[0m\x07", "a\tb\nc\rd\0e", "žluťoučký 🐎"]
)
def test_text_is_kept_as_it_was_written(text):
    assert kept(Line("info", text)).message == text
    assert kept(Line("info", text.encode())).message == text


def test_bytes_that_are_no_text_are_replaced():
    assert kept(Line("info", b"caf\xe9 \xff")).message == "caf\ufffd \ufffd"
    assert kept(Line("info", "lone \ud800 surrogate")).message == "lone ? surrogate"


@pytest.mark.parametrize("character", ["x", "é", "🐎", "\0"])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_long_line_is_cut_and_says_so(character, as_bytes):
    text = character * (1_000_000 // len(character.encode()))
    entry = kept(Line("info", text.encode() if as_bytes else text))
    body, mark, rest = entry.message.partition("… [cut: ")
    assert mark
    assert rest == f"{len(text.encode())} bytes in all]"
    assert set(body) == {character}
    assert MAX_MESSAGE_BYTES - 4 < len(body.encode()) <= MAX_MESSAGE_BYTES


def test_a_line_at_the_limit_is_whole():
    assert kept(Line("info", "x" * MAX_MESSAGE_BYTES)).message == "x" * MAX_MESSAGE_BYTES


def test_names_are_cut():
    assert len(kept(Line("info", "m", worker_id="w" * 10_000)).worker_id) == MAX_NAME_CHARS


@pytest.mark.parametrize(
    ("word", "level"),
    [("WARNING", "warn"), ("Critical", "error"), ("trace", "debug"), ("loud", "info")],
)
def test_levels_by_other_names(word, level):
    assert kept(Line(word, "m")).level == level


def test_a_line_without_a_time_has_the_time_of_its_arrival():
    assert kept(Line("info", "m")).timestamp == NOW_MS
    assert kept(Line("info", "m", timestamp=2**60)).timestamp == NOW_MS


def test_an_id_is_its_number():
    assert seq_of(make(255, Line("info", "m"), NOW_MS).id) == 255
