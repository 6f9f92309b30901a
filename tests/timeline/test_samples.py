"""Guards the history of a sample and of a step, and that wrong bytes are detected."""

import numpy as np
import pytest

from strata.data.reading.batch_measures import content_of
from strata.data.source_dataset import open_arrays
from strata.errors import NotFound
from strata.timeline.audit.batch_contents import compare, recorded_contents
from strata.timeline.audit.sample_history import step_story, trainings_of
from tests.timeline.fleet import Fleet


def test_sample_is_found_in_each_epoch_with_its_worker():
    fleet = Fleet(3, samples=60, batch=12)
    fleet.train(10)
    found = trainings_of(fleet.store, fleet.task, 17)
    assert [each.epoch for each in found] == [0, 1]
    for each in found:
        lanes = fleet.row.feeds["d"].holdings[each.worker]
        assert each.lane in lanes
        assert 17 in fleet.order.step_samples(each.step, lanes)


def test_rolled_back_step_is_void_in_its_attempt():
    fleet = Fleet(2, samples=60, batch=12)
    fleet.train(1)
    fleet.save()
    fleet.train(3)
    for worker in ("w0", "w1"):
        fleet.lose(worker)
    fleet.join("w2")
    fleet.join("w3")
    fleet.sync()
    fleet.train(4)
    sample = int(fleet.order.step_samples(2)[0])
    (found,) = trainings_of(fleet.store, fleet.task, sample)
    assert (found.step, found.void, found.worker in ("w2", "w3")) == (2, [1], True)


def test_step_lists_samples_by_worker():
    fleet = Fleet(3, samples=60, batch=12)
    fleet.train(4)
    story = step_story(fleet.store, fleet.task, 3)
    trained = sorted(sample for share in story.shares for sample in share.samples)
    assert trained == sorted(fleet.order.step_samples(3).tolist())
    assert [share.worker for share in story.shares] == ["w0", "w1", "w2"]


def test_unknown_sample_step_or_dataset_is_not_found():
    fleet = Fleet(1, samples=60, batch=12)
    fleet.train(2)
    with pytest.raises(NotFound, match="step 2"):
        step_story(fleet.store, fleet.task, 2)
    with pytest.raises(NotFound, match="no sample 60"):
        trainings_of(fleet.store, fleet.task, 60)
    with pytest.raises(NotFound, match="no steps of dataset 'other'"):
        trainings_of(fleet.store, fleet.task, 1, "other")


@pytest.mark.parametrize(
    "values", [np.arange(60), np.array([f"text {n}" for n in range(60)], object)]
)
def test_worker_that_read_wrong_bytes_is_found(values):
    data = open_arrays({"x": values}, name="d")
    fleet = Fleet(3, samples=60, batch=12, data=data)
    fleet.train(2)
    fleet.train(1, garbled=["w1"])
    fleet.train(1)
    compared, wrong, step = 0, [], 0
    while step is not None:
        page = recorded_contents(fleet.store, fleet.task, step, samples=24)
        found = compare(page.feeds[0], lambda name, spec: data)
        compared += found.compared
        wrong += [(each.worker, each.step) for each in found.wrong]
        step = page.next_step
    assert compared == 12
    assert wrong == [("w1", 2)]


def test_content_digest_depends_on_order_type_and_every_byte():
    plain = {"x": np.arange(100, dtype=np.int32), "y": np.array(["a", "b"], object)}
    digest = content_of(plain)
    assert digest == content_of({"y": plain["y"], "x": plain["x"].copy()})
    flipped = plain["x"].copy()
    flipped[50] ^= 1
    others = [
        {**plain, "x": flipped},
        {**plain, "x": plain["x"][::-1]},
        {**plain, "x": plain["x"].astype(np.int64)},
        {**plain, "y": np.array(["ab", ""], object)},
        {"x": plain["x"]},
    ]
    assert len({digest, *map(content_of, others)}) == 6
