"""Guards that every kind of event has a plain sentence, whichever of its fields are set."""

import re
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

import msgspec
import pytest

from strata.core.events import Envelope, UnknownFact
from strata.core.record.event_codec import CODEC
from strata.timeline.read.records import Record
from strata.timeline.read.sentences import parsed, sentence

pytestmark = pytest.mark.quick

KINDS = list(CODEC.kinds.values())
NAMED = {
    "worker": "w-1",
    "peer": "w-2",
    "task": "train-1",
    "dataset": "digits",
    "reason": "no heartbeat for 30 s",
    "error": "TimeoutError: no answer",
    "batch": "digits/5",
    "batches": "digits/5",
    "blob": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    "checkpoint": "step-0040",
    "barrier": "epoch-end",
    "value": "7",
    "to": "w-2",
    "sender": "w-2",
    "missing": "w-3",
}
HOLES = re.compile(
    r"  | ,|: ,|, :|\(\)|\[|\]|\{|\}|\bNone\b|\bTrue\b|\bFalse\b|–|(?<!\w)-1\b|\bok\b"
)
LOOSE_END = re.compile(r"(?:[:,;(–-]|\b(?:of|to|from|for|on|at|as|with|by|in|batches|lanes))$")


def example(name, hint):
    """A value as a run would record it in a field."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return example(name, next(each for each in args if each is not NoneType))
    if origin is Literal:
        return args[0]
    if origin is list or hint is list:
        return [example(name, args[0])]
    if origin is tuple:
        return tuple(example(name, each) for each in args if each is not Ellipsis)
    if origin is dict:
        return {}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return required(hint)
    if hint is str:
        return NAMED.get(name, f"some-{name}")
    if hint is int and name.endswith(("_bytes", "_ns")):
        return 2_500_000
    return {bool: True, int: 3, float: 0.25, bytes: b"x"}[hint]


def required(kind, **chosen):
    """A fact of a kind with only the fields that it must have."""
    fields = [field for field in msgspec.structs.fields(kind) if field.required]
    return kind(**{field.name: example(field.name, field.type) for field in fields} | chosen)


def complete(kind):
    """A fact of a kind with every field."""
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: example(field.name, field.type) for field in fields})


def forms(kind):
    """Facts of a kind with all fields, with few, and with empty ones; every bool both ways."""
    switches = [each.name for each in msgspec.structs.fields(kind) if each.type is bool]
    lists = {
        each.name: [] for each in msgspec.structs.fields(kind) if get_origin(each.type) is list
    }
    silent = {name: "" for name in ("reason", "error") if hasattr(required(kind), name)}
    for base in (complete(kind), required(kind), required(kind, **lists, **silent)):
        yield base
        for name in switches:
            yield msgspec.structs.replace(base, **{name: True})
            yield msgspec.structs.replace(base, **{name: False})


def sentence_of(fact):
    return sentence(Record(10**18, "w-1", 1, Envelope(7, 10**18, 1, fact)))


def objection(text):
    """Why a sentence is not acceptable, or an empty string."""
    if not text or text != text.strip():
        return "it is empty or has space around it"
    found = HOLES.search(text) or LOOSE_END.search(text)
    return f"{found[0]!r}" if found else ""


def test_every_kind_has_a_sentence():
    assert [kind.__name__ for kind in KINDS if not kind.sentence] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_sentence_reads_well_whichever_fields_are_set(kind):
    for fact in forms(kind):
        text = sentence_of(fact)
        assert objection(text) == "", f"{fact} is told as {text!r}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_sentence_names_only_fields_that_the_kind_has(kind):
    parts = parsed(kind.sentence)
    pieces = [piece for part in parts for piece in (*part.pieces, *(part.otherwise or ()))]
    named = {piece.field for piece in pieces if piece.field is not None}
    assert named <= {field.name for field in msgspec.structs.fields(kind)}
    assert named


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if {"ok", "error"} <= set(kind.__struct_fields__)],
    ids=lambda kind: kind.__name__,
)
def test_sentence_of_a_failure_has_its_error(kind):
    worked = sentence_of(msgspec.structs.replace(complete(kind), ok=True, error=""))
    failed = sentence_of(msgspec.structs.replace(complete(kind), ok=False))
    assert "fail" in failed
    assert failed.endswith(NAMED["error"])
    assert "fail" not in worked


@pytest.mark.parametrize(
    "text",
    [
        "the coordinator answered enter , ok yes",
        "is to train batches –",
        "is to train batches",
        "asked the coordinator: enter ,",
        "lost by heartbeat:",
        "sent update  to w-2",
        "missing [], reason",
        "loss None",
        "at step -1",
    ],
)
def test_sentence_check_finds_holes(text):
    assert objection(text)


def test_kind_of_another_release_is_shown_by_its_fields():
    text = sentence_of(UnknownFact(tag="Later/2", fields={"batch": "", "done": False, "step": 4}))
    assert text == "Later: done no, step 4"


def test_download_of_no_batch_is_told_without_one():
    """Files that are read to open a dataset belong to no batch."""
    kinds = [kind for kind in KINDS if kind.__name__.startswith("BatchDownload")]
    for kind in kinds:
        text = sentence_of(msgspec.structs.replace(complete(kind), batch=""))
        assert objection(text) == "", text
        assert "batch" not in text


def test_download_by_another_worker_is_told_as_such():
    (kind,) = [kind for kind in KINDS if kind.__name__ == "BatchDownloadCompleted"]
    assert "by another worker" in sentence_of(required(kind, ok=True, error="", shared=True))
    assert "by another worker" not in sentence_of(required(kind, ok=True, error="", shared=False))


def test_lost_positions_are_told_as_the_command_line_names_them():
    (kind,) = [kind for kind in KINDS if kind.__name__ == "LogSalvaged"]
    assert sentence_of(required(kind, lost=[(5, 10), (12, 13)])).endswith(
        "lost: @5 to @9, @12 to @12"
    )
