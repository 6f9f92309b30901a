"""Guards searches in a run: stories, moments at which a condition holds, differences, lanes,
counts."""

import re
from itertools import pairwise

import pytest

from strata.errors import InvalidArgument, NotFound
from strata.timeline.lanes.worker_lanes import MAX_SPANS, Span, merged
from strata.timeline.read.operations import PHASES, operations
from strata.timeline.read.sentences import sentence


class TestStories:
    def test_worker_story_has_its_own_events_and_the_coordinators_facts(self, crashed):
        name = crashed.kinds("WorkerLost")[0].text("worker")
        entries = crashed.queries.story(f"worker:{name}", limit=1000).entries
        assert {"coordinator", name} == {entry.node for entry in entries}
        kinds = [entry.kind for entry in entries]
        for kind in ("WorkerRegistered", "RunStarted", "WorkerLost", "GenerationChanged"):
            assert kind in kinds
        assert [entry.at_ms for entry in entries] == sorted(entry.at_ms for entry in entries)

    def test_checkpoint_story_has_the_writes_of_every_rank(self, crashed):
        saved = crashed.kinds("CheckpointCommitted")[0].text("checkpoint")
        entries = [entry.kind for entry in crashed.queries.story(f"checkpoint:{saved}").entries]
        assert entries[0] == "CheckpointStarted"
        assert entries.count("CheckpointWriteCompleted") == 4
        assert "CheckpointCommitted" in entries

    @pytest.mark.parametrize(
        "subject",
        ["task:train-1", "barrier:step-25", "batch:7", "generation:train-1/2", "shard:sim/0"],
    )
    def test_every_kind_of_subject_has_a_story(self, crashed, subject):
        assert crashed.queries.story(subject).entries

    def test_message_story_spans_nodes(self, crashed):
        sent = crashed.kinds("MessageSent")[0]
        entries = crashed.queries.story(f"message:{sent.text('message')}").entries
        assert [entry.kind for entry in entries] == ["MessageSent", "MessageReceived"]
        assert entries[0].node != entries[1].node

    def test_arrival_names_its_send_as_cause(self, crashed):
        sent = {record.ref: record for record in crashed.kinds("MessageSent")}
        arrived = crashed.kinds("MessageReceived", "MessageRejected")
        assert arrived
        for record in arrived:
            (cause,) = record.causes
            assert sent[cause].text("message") == record.text("message")
        detail = crashed.queries.event(arrived[0].ref)
        assert [link.ref for link in detail.causes] == arrived[0].causes

    def test_pages_of_a_story_add_up_to_the_whole(self, crashed):
        whole = crashed.queries.story("task:train-1", limit=1000).entries
        pages, cursor = [], ""
        while True:
            page = crashed.queries.story("task:train-1", limit=17, cursor=cursor)
            pages += page.entries
            cursor = page.next
            if not cursor:
                break
        assert pages == whole

    @pytest.mark.parametrize("subject", ["", "planet:mars", "worker:", "shard:x", "generation:a/b"])
    def test_invalid_subject_is_refused(self, crashed, subject):
        with pytest.raises(InvalidArgument):
            crashed.queries.story(subject)


class TestSeeking:
    def test_next_and_the_previous_event_of_a_kind(self, crashed):
        lost = crashed.kinds("WorkerLost")[0]
        queries = crashed.queries
        assert queries.seek("kind=WorkerLost", None, "next").ref == lost.ref
        assert queries.seek("kind=WorkerLost", None, "previous").ref == lost.ref
        with pytest.raises(NotFound):
            queries.seek("kind=WorkerLost", lost.at_ns / 1e6, "next")

    def test_seek_finds_when_a_worker_stopped_training(self, crashed):
        lost = crashed.kinds("WorkerLost")[0]
        name = lost.text("worker")
        found = crashed.queries.seek(f"worker {name} not training", lost.at_ns / 1e6 - 1000, "next")
        assert found.ref == lost.ref
        back = crashed.queries.seek(f"worker {name} is training", found.at_ms, "next")
        assert back.at_ms > found.at_ms

    def test_conditions_on_fields(self, crashed):
        found = crashed.queries.seek("kind=StepFinished step>30", None, "next")
        assert crashed.timeline.record(found.ref).get("step") == 31

    def test_stepping_forward_and_backward_returns_to_the_same_moment(self, crashed):
        queries = crashed.queries
        first = queries.seek("kind=TaskStateChanged", None, "next")
        second = queries.seek("kind=TaskStateChanged", first.at_ms, "next")
        assert queries.seek("kind=TaskStateChanged", second.at_ms - 0.001, "previous") == first

    @pytest.mark.parametrize("text", ["what?", "step ~ 3", "worker w"])
    def test_invalid_predicate_is_refused(self, crashed, text):
        with pytest.raises(InvalidArgument):
            crashed.queries.seek(text, None)


class TestDifferences:
    def test_diff_of_two_moments_lists_changes(self, crashed):
        lost = crashed.kinds("WorkerLost")[0]
        found = crashed.queries.diff(lost.at_ns / 1e6 - 1, lost.at_ns / 1e6 + 1)
        paths = {change.path: change for change in found.changes}
        state = paths[f"workers.{lost.text('worker')}.state"]
        assert (state.before, state.after) == ("training", "lost")
        assert "was training, is lost" in state.text

    def test_diff_of_a_moment_with_itself_is_empty(self, crashed):
        at = crashed.timeline.extent().to_ns / 1e6
        assert crashed.queries.diff(at, at).changes == []


class TestLanes:
    def test_every_worker_has_a_lane_with_its_activities(self, crashed):
        found = crashed.queries.lanes(None, None, task="train-1")
        assert {lane.rank for lane in found.lanes} == {0, 1, 2, 3}
        assert found.fine
        kinds = {span.kind for lane in found.lanes for span in lane.spans}
        assert {"train", "wait", "barrier", "lost"} <= kinds
        for lane in found.lanes:
            for span in lane.spans:
                assert span.to_ms is None or span.to_ms >= span.from_ms

    def test_loss_is_a_mark_on_the_workers_lane(self, crashed):
        lost = crashed.kinds("WorkerLost")[0]
        found = crashed.queries.lanes(None, None, task="train-1").lanes
        lane = next(lane for lane in found if lane.node == lost.text("worker"))
        assert lost.ref in [mark.ref for mark in lane.marks]

    def test_lanes_are_paged_without_repetition(self, crashed):
        first = crashed.queries.lanes(None, None, limit=3)
        assert first.truncated
        second = crashed.queries.lanes(None, None, limit=3, cursor=first.next)
        assert not {a.node for a in first.lanes} & {b.node for b in second.lanes}

    def test_too_many_spans_are_merged_and_counted(self):
        kinds = ("train", "data", "wait")
        spans = [
            Span(i * 10, i * 10 + 10, kinds[i % 3], f"step {i}", "", True) for i in range(10_000)
        ]
        found = merged(spans, 0, 100_000)
        assert len(found) <= MAX_SPANS
        assert sum(span.count for span in found) >= 10_000
        assert found[0].from_ns == 0
        assert all(a.to_ns == b.from_ns for a, b in pairwise(found))
        assert found[-1].to_ns == 100_000
        for kind in kinds:
            fine, coarse = (
                sum(each.to_ns - each.from_ns for each in every if each.kind == kind)
                for every in (spans, found)
            )
            assert fine == coarse


class TestCounts:
    def test_density_slices_add_up_to_the_totals(self, crashed):
        span = crashed.queries.span()
        found = crashed.queries.density(None, None, 50).buckets
        assert sum(bucket.facts for bucket in found) == span.facts
        assert sum(bucket.events for bucket in found) == span.worker_events
        assert sum(bucket.losses for bucket in found) == 1

    def test_pages_of_events_have_every_event_once(self, crashed):
        found, cursor = [], ""
        while True:
            page, cursor = crashed.queries.events(limit=1000, cursor=cursor)
            found += page
            if not cursor:
                break
        span = crashed.queries.span()
        assert len(found) == span.facts + span.worker_events
        assert len({event.ref for event in found}) == len(found)

    def test_event_detail_has_operation_causes_and_effects(self, crashed):
        done = crashed.kinds("CheckpointWriteCompleted")[0]
        detail = crashed.queries.event(done.ref)
        assert detail.operation is not None
        assert detail.operation.completed == done.ref
        assert detail.operation.duration_ms > 0
        lost = crashed.queries.event(crashed.kinds("WorkerLost")[0].ref)
        assert [cause.kind for cause in lost.causes] == ["WorkerExited"]
        assert "GenerationChanged" in [effect.kind for effect in lost.effects]


def test_operations_pair_start_and_end(crashed):
    found = list(operations(crashed.timeline.records()))
    started = [r for r in crashed.timeline.records() if PHASES.get(r.kind, ("", ""))[1] == "start"]
    assert len([each for each in found if each.start is not None]) == len(started)
    assert all(each.duration_ns >= 0 for each in found if each.start and each.end)


def test_every_record_has_a_sentence_without_holes(crashed):
    for record in crashed.timeline.records():
        text = sentence(record)
        assert text
        assert "{" not in text


def test_sentences_show_times_with_units(crashed):
    said = {record.kind: sentence(record) for record in crashed.timeline.records()}
    assert re.search(r"clock is \d+ (µs|ms) (ahead|behind)$", said["ClockSampled"])
