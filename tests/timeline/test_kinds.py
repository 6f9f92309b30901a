"""Guards the catalogue as other programs see it: its JSON Schema, and users' own kinds."""

import json

import jsonschema
import msgspec
import pytest

import strata
from strata.core.events import Envelope, Fact
from strata.core.record.event_codec import CODEC, json_schema
from strata.store.event_batches import pack
from strata.store.memory_store import MemoryStore
from strata.timeline.read.log_trust import examine
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import sentence


@strata.fact
class LossSpiked:
    """The loss rose suddenly."""

    step: int
    loss: float
    batch: str = ""


@pytest.fixture(scope="module")
def schema():
    return json_schema()


class TestSchema:
    def test_schema_has_every_kind(self, schema):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert {kind.__name__ for kind in CODEC.kinds.values()} <= schema["$defs"].keys()

    def test_recorded_events_satisfy_the_schema(self, schema, crashed):
        one_of_each = {record.kind: record for record in crashed.timeline.records()}
        validator = jsonschema.Draft202012Validator(schema)
        for record in one_of_each.values():
            validator.validate(json.loads(msgspec.json.encode(record.event.body)))

    def test_schema_refuses_invalid_events(self, schema):
        validator = jsonschema.Draft202012Validator(schema)
        assert not validator.is_valid({"kind": "WorkerLost", "worker": 3})
        assert not validator.is_valid({"kind": "Nonsense"})


class TestUsersOwnKinds:
    @pytest.fixture
    def timeline(self):
        store = MemoryStore(CODEC)
        events = [
            Envelope(0, 10**18, 0, LossSpiked(step=7, loss=9.5)),
            Envelope(1, 10**18 + 1, 1, LossSpiked(step=8, loss=1.5, batch="b")),
        ]
        store.append([], incarnation=1, expected=0, batches=[pack(CODEC, "w", 1, events)])
        return Timeline(store)

    def test_decorated_class_is_a_frozen_fact(self):
        made = LossSpiked(step=1, loss=2.0)
        assert isinstance(made, Fact)
        assert LossSpiked.__doc__ == "The loss rose suddenly."
        with pytest.raises(AttributeError):
            made.step = 2

    def test_user_event_is_read_back_without_its_class(self, timeline):
        first, second = timeline.records(node="w")
        assert first.kind == "user.LossSpiked"
        assert first.fields() == {"step": 7, "loss": 9.5}
        assert second.tags() == {"step": 8, "batch": "b"}
        assert "step 7" in sentence(first)

    def test_user_event_is_not_reported_as_a_newer_kind(self, timeline):
        assert not [f for f in examine(timeline).findings if f.kind == "unknown kind"]

    def test_user_event_never_collides_with_a_fact(self):
        assert not [tag for tag in CODEC.kinds if tag.startswith("user.")]
