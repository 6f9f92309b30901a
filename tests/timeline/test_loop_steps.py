"""Guards that questions about samples use the dataset's step, not the run's, where a script has
several loops."""

import numpy as np
import pytest

from strata.data.source_dataset import open_dataset
from strata.errors import NotFound
from strata.timeline.audit.batch_contents import compare, recorded_contents
from strata.timeline.audit.lineage import read_lineage
from strata.timeline.audit.sample_history import step_story, trainings_of
from strata.timeline.export import sql_queries
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.run_timeline import Timeline
from tests.timeline.fleet import Fleet


@pytest.fixture
def fleet():
    """Trained `d` (5 steps an epoch) for an epoch, `e` for 2 steps of a left loop, and `d` again
    for 3 steps of its second epoch; one rollback on the way."""
    fleet = Fleet(2, batch=12, loops=True)
    fleet.loop("0.-1.0", "d", loop_epochs=1)
    fleet.train(2)
    fleet.save()
    fleet.train(3)
    fleet.loop("0.-1.1", "e", samples=60, loop_epochs=1)
    fleet.train(1)
    for worker in ("w0", "w1"):
        fleet.lose(worker)
    for worker in ("w2", "w3"):
        fleet.join(worker)
    assert fleet.sync() == 2
    fleet.reading = {"d": 0}
    fleet.train(3)
    fleet.loop("0.-1.1", "e", loop_epochs=1)
    fleet.train(2)
    fleet.loop("0.-1.2", "d", loop_epochs=1)
    fleet.train(3)
    return fleet


def test_training_of_a_sample_is_found_in_the_steps_of_the_run(fleet):
    order = fleet.orders["d"]
    steps = {*range(5), 7, 8, 9}
    for sample in (0, 31, 59):
        expected = [
            (step, (step if step < 5 else step - 2) // 5)
            for step in sorted(steps)
            if sample in order.step_samples(step if step < 5 else step - 2)
        ]
        found = trainings_of(fleet.store, fleet.task, sample, "d")
        assert [(each.step, each.epoch) for each in found] == expected
        assert all(each.worker for each in found)


def test_step_story_has_the_samples_of_the_loop_it_belongs_to(fleet):
    story = step_story(fleet.store, fleet.task, 8, "d")
    samples = [sample for share in story.shares for sample in share.samples]
    assert sorted(samples) == sorted(fleet.orders["d"].step_samples(6).tolist())
    assert (story.step, story.epoch) == (8, 1)
    with pytest.raises(NotFound, match="step 6 of task 'default-1' does not train dataset 'd'"):
        step_story(fleet.store, fleet.task, 6, "d")


def test_samples_table_gives_the_samples_of_each_loop(fleet):
    asked = (
        "SELECT dataset, first_step, last_step, first_sample, stop_sample FROM samples "
        "WHERE {} ORDER BY committed_at, dataset"
    )
    timeline = Timeline(fleet.store, "loops")
    assert sql_queries.query(timeline, asked.format("NOT voided")).rows == [
        ("d", 0, 1, 0, 24),
        ("d", 2, 4, 24, 60),
        ("e", 5, 6, 0, 24),
        ("d", 7, 9, 60, 96),
    ]
    assert sql_queries.query(timeline, asked.format("voided")).rows == [
        ("d", 2, 4, 24, 60),
        ("e", 5, 5, 0, 12),
    ]


def test_why_counts_the_samples_that_a_rollback_undid_in_every_loop(fleet):
    answer = TimelineQueries(Timeline(fleet.store, "loops")).why(
        "samples", params={"task": fleet.task}
    )
    assert "steps 2 to 5 (48 samples) were undone" in answer.answer


def test_samples_table_agrees_with_the_lineage_of_a_commit_over_two_loops():
    fleet = Fleet(1, batch=12, loops=True)
    fleet.loop("0.-1.0", "d", steps=2)
    fleet.read(2)
    fleet.finish(2)
    fleet.applied["w0"] += 2
    fleet.loop("0.-1.1", "d", steps=1)
    fleet.loop("0.-1.2", "e", steps=4)
    fleet.train(3)
    found = sql_queries.query(
        Timeline(fleet.store, "loops"),
        "SELECT dataset, first_step, last_step + 1, first_sample // 12 - first_step FROM samples",
    ).rows
    lineage = read_lineage(fleet.store, fleet.task)
    assert sorted(found) == [
        (name, piece.first, piece.stop, piece.shift)
        for name in ("d", "e")
        for piece in lineage.pieces_of(name)
    ]


def test_contents_are_compared_in_the_dataset_s_own_steps(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(60))
    data = open_dataset(str(tmp_path / "x.npy"), name="d")
    fleet = Fleet(2, batch=12, loops=True, data=data)
    fleet.loop("0.0.0", loop_epochs=1)
    fleet.train(3)
    fleet.loop("0.1.0", loop_epochs=1)
    fleet.train(1)
    fleet.train(1, garbled=["w1"])
    (page,) = recorded_contents(fleet.store, fleet.task).feeds
    found = compare(page, lambda name, spec: data)
    assert (found.compared, [(each.worker, each.step) for each in found.wrong]) == (10, [("w1", 4)])
