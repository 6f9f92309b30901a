"""Restarts after an upgrade: a snapshot that an earlier release wrote is loaded, and equals the
state that folding the same facts gives. So no default of a new field can make a different state.

`tests/golden/states-v1.bin` holds the snapshots after each fact of a run with every kind of fact,
for each shape that the state has had; the first is one without storage waits. After a change of
the state, run `python -m tests.core.golden` and commit what it adds. If the comparison below fails,
the value of a new field depends on facts that are folded already: raise `VERSION` in
core/record/snapshot_versions.py, so that older snapshots are not loaded.
"""

import msgspec
import pytest

from strata.core.cluster import CODEC, apply, fold
from strata.core.record import snapshot_versions
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
    if frozen.schema != snapshot_versions.SCHEMA:
        with pytest.raises(UnknownKind):
            snapshot_versions.decode(frozen.schema, frozen.snapshots[-1])
        return
    state = Cluster()
    for event, snapshot in zip(events, frozen.snapshots, strict=True):
        apply(state, event)
        assert snapshot_versions.decode(frozen.schema, snapshot) == state, event


def test_frozen_snapshots_include_an_older_shape():
    older = [each for each in FROZEN if each.shape != snapshot_versions.SHAPE]
    assert any(each.schema == snapshot_versions.SCHEMA for each in older)
    assert "StorageWait" not in older[0].shape


def stored(change=None) -> bytes:
    """A snapshot of a run, as a release with another state would have written it."""
    state = fold(Cluster(), CODEC.decode(frozen_runs()[-1])[:60])
    shape, tree = msgspec.msgpack.decode(snapshot_versions.encode(state))
    if change is not None:
        change(shape, tree)
    return msgspec.msgpack.encode((shape, tree))


def truth() -> Cluster:
    return fold(Cluster(), CODEC.decode(frozen_runs()[-1])[:60])


def load(snapshot: bytes) -> Cluster:
    return snapshot_versions.decode(snapshot_versions.SCHEMA, snapshot)


def without_new_field(shape, tree):
    shape["Task"].remove("storage_wait")
    for task in tree["tasks"].values():
        del task["storage_wait"]


def with_unknown_field(shape, tree):
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


def test_snapshot_with_unknown_field_is_refused():
    with pytest.raises(UnknownKind, match=r"Task\.moon_phase"):
        load(stored(with_unknown_field))


@pytest.mark.parametrize("change", [without_required_field, with_other_type])
def test_fields_that_do_not_fit_are_refused(change):
    with pytest.raises(UnknownKind, match="types of this release"):
        load(stored(change))


@pytest.mark.parametrize("damaged", [b"", b"\xc1", stored()[:-1]])
def test_damaged_snapshot_is_corrupt(damaged):
    with pytest.raises(Corrupt):
        load(damaged)


@pytest.mark.parametrize("version", [snapshot_versions.VERSION - 1, snapshot_versions.VERSION + 1])
def test_snapshot_of_another_version_is_refused(version):
    with pytest.raises(UnknownKind):
        snapshot_versions.decode(f"state/{version}", stored())
