"""Guards restarts after an upgrade: a snapshot that an earlier release wrote is loaded, and is the
state that folding the same facts gives. So no default or migration can make a state that differs.

`tests/golden/states-v1.bin` holds the snapshots after each fact of a run with every kind of fact,
for each shape that the state has had; the first is one without storage waits. After a change of
the state, run `python -m tests.core.golden` and commit what it adds. If the comparison below fails,
the value of a new field depends on facts that are folded already: raise `VERSION` in
core/state_versions.py and write a migration.
"""

import msgspec
import pytest

from strata.core import state_versions
from strata.core.cluster import CODEC, apply, fold
from strata.core.state import Cluster
from strata.errors import Corrupt, UnknownKind
from tests.core.golden import Frozen, frozen_runs, frozen_states, is_frozen

FROZEN = frozen_states()
ADD = "the shape of the state is new: run `python -m tests.core.golden` and commit what it adds"


def test_present_shape_is_frozen():
    assert is_frozen(FROZEN), ADD


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda each: f"{each.schema}-run{each.run}")
def test_snapshot_of_earlier_release_is_the_fold_of_its_facts(frozen: Frozen):
    events = CODEC.decode(frozen_runs()[frozen.run])
    if frozen.schema not in state_versions.readable():
        with pytest.raises(UnknownKind):
            state_versions.decode(frozen.schema, frozen.snapshots[-1])
        return
    state = Cluster()
    for event, snapshot in zip(events, frozen.snapshots, strict=True):
        apply(state, event)
        assert state_versions.decode(frozen.schema, snapshot) == state, event


def test_an_older_shape_is_among_the_frozen_ones():
    older = [each for each in FROZEN if each.shape != state_versions.SHAPE]
    assert any(each.schema in state_versions.readable() for each in older)
    assert "StorageWait" not in older[0].shape


def stored(change=None) -> bytes:
    """A snapshot of a run, as a release with another state would have written it."""
    state = fold(Cluster(), CODEC.decode(frozen_runs()[-1])[:60])
    shape, tree = msgspec.msgpack.decode(state_versions.encode(state))
    if change is not None:
        change(shape, tree)
    return msgspec.msgpack.encode((shape, tree))


def truth() -> Cluster:
    return fold(Cluster(), CODEC.decode(frozen_runs()[-1])[:60])


def load(snapshot: bytes) -> Cluster:
    return state_versions.decode(state_versions.SCHEMA, snapshot)


def without_new_field(shape, tree):
    shape["Task"].remove("storage_wait")
    for task in tree["tasks"].values():
        del task["storage_wait"]


def with_old_field(shape, tree):
    shape["Task"].append("moon_phase")
    for task in tree["tasks"].values():
        task["moon_phase"] = "full"


def without_required_field(shape, tree):
    shape["Task"].remove("spec")
    for task in tree["tasks"].values():
        del task["spec"]


def with_other_type(shape, tree):
    for task in tree["tasks"].values():
        task["committed"] = str(task["committed"])


def test_added_field_gets_its_default():
    assert load(stored(without_new_field)) == truth()


def test_removed_field_is_ignored(monkeypatch):
    monkeypatch.setattr(state_versions, "REMOVED", frozenset({"Task.moon_phase"}))
    assert load(stored(with_old_field)) == truth()


def test_unknown_field_of_newer_release_is_refused():
    with pytest.raises(UnknownKind, match=r"Task\.moon_phase"):
        load(stored(with_old_field))


@pytest.mark.parametrize("change", [without_required_field, with_other_type])
def test_fields_that_do_not_fit_are_refused(change):
    with pytest.raises(UnknownKind, match="types of this release"):
        load(stored(change))


@pytest.mark.parametrize("damaged", [b"", b"\xc1", stored()[:-1]])
def test_bytes_that_are_no_snapshot_are_corrupt(damaged):
    with pytest.raises(Corrupt):
        load(damaged)


def test_change_of_meaning_is_migrated(monkeypatch):
    """A release that counted steps from 1 left `committed` one too high."""

    def from_one(shape, tree):
        for task in tree["tasks"].values():
            task["committed"] += 1

    def to_zero(tree):
        for task in tree["tasks"].values():
            task["committed"] -= 1
        return tree

    written = (state_versions.SCHEMA, stored(from_one))
    newer = state_versions.VERSION + 1
    monkeypatch.setattr(state_versions, "VERSION", newer)
    with pytest.raises(UnknownKind):
        state_versions.decode(*written)
    monkeypatch.setattr(state_versions, "MIGRATIONS", {newer - 1: to_zero})
    assert state_versions.readable()[:2] == (f"state/{newer}", f"state/{newer - 1}")
    assert state_versions.decode(*written) == truth()


def test_snapshot_of_newer_version_is_refused():
    with pytest.raises(UnknownKind):
        state_versions.decode(f"state/{state_versions.VERSION + 1}", stored())
