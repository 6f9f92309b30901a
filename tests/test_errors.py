"""Error tree: unique codes, one status row per class, text with hint."""

import pickle
import re

import grpc
import pytest

from strata import errors
from strata.errors import STATUS, Overloaded, StrataError


def tree(root: type[StrataError]) -> list[type[StrataError]]:
    return [root, *(each for child in root.__subclasses__() for each in tree(child))]


CLASSES = [each for each in tree(StrataError) if each.__module__ == errors.__name__]


def test_every_error_has_a_unique_code():
    codes = [each.__dict__.get("code") for each in CLASSES]
    assert None not in codes
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_status_table_has_one_row_per_error():
    assert set(STATUS) == set(CLASSES)


@pytest.mark.parametrize("each", CLASSES)
def test_status_is_valid_in_http_and_grpc(each):
    http, grpc_name = STATUS[each]
    assert 400 <= http < 600
    assert grpc_name in grpc.StatusCode.__members__


@pytest.mark.parametrize("each", CLASSES)
def test_module_docstring_names_every_error(each):
    assert re.search(rf"\b{each.__name__}\b", errors.__doc__)


def test_text_shows_message_and_hint():
    assert str(StrataError("the disk is full")) == "the disk is full"
    assert str(StrataError("the disk is full", hint="free some")) == "the disk is full (free some)"


def test_errors_can_be_pickled():
    sent = Overloaded("the inbox is full", hint="try again", retry_after_s=0.25)
    back = pickle.loads(pickle.dumps(sent))
    assert (str(back), back.hint, back.retry_after_s) == (str(sent), "try again", 0.25)
