"""Conversion of any process output to entries that can be stored and shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.coordinator.logs.log_entries import (
    MAX_MESSAGE_BYTES,
    MAX_NAME_CHARS,
    LogLine,
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


def test_entry_has_the_fields_of_the_contract():
    line = LogLine("info", "Checkpoint persisted", "worker", "run-1", "gpu-05", "stdout", NOW_MS)
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
def test_any_line_can_be_stored(message, level, name, stream, timestamp):
    entry = kept(LogLine(level, message, name, name, name, stream, timestamp))
    assert entry.level in ("error", "warn", "info", "debug")
    assert 0 < entry.timestamp < 2**53


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "\x1b[31mred\x1b[0m\x07", "a\tb\nc\rd\0e", "žluťoučký 🐎"]
)
def test_text_is_stored_unchanged(text):
    assert kept(LogLine("info", text)).message == text
    assert kept(LogLine("info", text.encode())).message == text


def test_invalid_utf8_is_replaced():
    assert kept(LogLine("info", b"caf\xe9 \xff")).message == "caf\ufffd \ufffd"
    assert kept(LogLine("info", "lone \ud800 surrogate")).message == "lone ? surrogate"


@pytest.mark.parametrize("character", ["x", "é", "🐎", "\0"])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_long_line_is_cut_with_a_note(character, as_bytes):
    text = character * (1_000_000 // len(character.encode()))
    entry = kept(LogLine("info", text.encode() if as_bytes else text))
    body, mark, rest = entry.message.partition("… [cut: ")
    assert mark
    assert rest == f"{len(text.encode())} bytes in all]"
    assert set(body) == {character}
    assert MAX_MESSAGE_BYTES - 4 < len(body.encode()) <= MAX_MESSAGE_BYTES


def test_line_at_the_limit_is_not_cut():
    assert kept(LogLine("info", "x" * MAX_MESSAGE_BYTES)).message == "x" * MAX_MESSAGE_BYTES


def test_long_names_are_cut():
    assert len(kept(LogLine("info", "m", worker_id="w" * 10_000)).worker_id) == MAX_NAME_CHARS


@pytest.mark.parametrize(
    ("word", "level"),
    [("WARNING", "warn"), ("Critical", "error"), ("trace", "debug"), ("loud", "info")],
)
def test_other_level_names(word, level):
    assert kept(LogLine(word, "m")).level == level


def test_line_without_timestamp_gets_its_arrival_time():
    assert kept(LogLine("info", "m")).timestamp == NOW_MS
    assert kept(LogLine("info", "m", timestamp=2**60)).timestamp == NOW_MS


def test_entry_id_contains_its_number():
    assert seq_of(make(255, LogLine("info", "m"), NOW_MS).id) == 255
