"""Guards the comparison of forks, which begins at the fork point, and the tree of forks."""

import json
import os
import subprocess

import pytest

from strata.core.checkpoints.checkpoint_commits import ConfirmCheckpoint
from strata.core.record.event_codec import CODEC
from strata.core.tasks.placement import StopTask
from strata.errors import InvalidArgument, NotFound
from strata.store.sqlite import SqliteStore
from strata.timeline.archive.run_archive import archive
from strata.timeline.archive.run_excerpt import run_of
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.queries import TimelineQueries
from tests.coordinator.process import STRATA
from tests.core.test_task_forks import forked, trained


def train_on(world, task, *saves):
    world.start(task)
    world.sync(task)
    for step in saves:
        world.train(task, step)
        world.save(task, step)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """demo-1 with forks at steps 4 and 8; demo-2 has a fork at step 6."""
    world, parent = trained(config='{"lr": 0.1}')
    early = forked(world, parent, 4, config='{"lr": 0.5}')
    train_on(world, early, 6, 10)
    forked(world, early, 6)
    late = forked(world, parent, 8)
    train_on(world, late, 10)
    world.do(StopTask(task=parent.id))
    for peer in world.members(parent):
        peer.leave("stopped")
    folder = tmp_path_factory.mktemp("forks")
    write_log(world, folder)
    return folder


def write_log(world, folder):
    with SqliteStore(folder / "log.db", CODEC) as store:
        for event in world.log:
            store.append([event], incarnation=1, expected=event.seq)


def queries_of(world, folder):
    write_log(world, folder)
    return TimelineQueries(open_timeline(folder))


@pytest.fixture
def compare(folder):
    timeline = open_timeline(folder)
    queries = TimelineQueries(timeline)
    yield lambda task, other: queries.why("differs", params={"task": task, "other": other})
    timeline.close()


def test_fork_is_compared_with_its_parent_from_the_fork_on(compare):
    found = compare("demo-1", "demo-2")
    assert "common up to step 4 of demo-1 (step-00000004-1), the fork point" in found.answer
    assert found.findings == ["config.lr: 0.1 here, 0.5 there"]
    assert "step 8" in found.answer
    assert "step 6" in found.answer


def test_siblings_are_compared_from_the_earlier_fork_on(compare):
    found = compare("demo-4", "demo-2")
    assert "common up to step 4 of demo-1" in found.answer
    assert found.verdict == "yes"
    assert "step 8" in found.answer, "the later fork has its parent's facts up to its own fork"


def test_fork_of_a_fork_parts_where_the_first_fork_did(compare):
    assert "common up to step 4 of demo-1" in compare("demo-3", "demo-1").answer
    assert "common up to step 6 of demo-2" in compare("demo-2", "demo-3").answer


def test_task_that_is_not_in_the_log_is_refused(compare):
    with pytest.raises(NotFound, match="demo-9"):
        compare("demo-1", "demo-9")
    with pytest.raises(InvalidArgument, match="twice"):
        compare("demo-1", "demo-1")


def test_forks_that_did_the_same_do_not_differ(tmp_path):
    world, parent = trained()
    for waits in (False, True):
        fork = forked(world, parent, 8)
        world.start(fork)
        world.sync(fork)
        world.train(fork, 10)
        saved = world.seal(fork, 10)
        if waits:
            world.submit(1, name="other")  # a command takes a second: this save takes longer
        world.do(ConfirmCheckpoint(task=fork.id, checkpoint=saved.id, path=f"{fork.id}/{saved.id}"))
    found = queries_of(world, tmp_path).why("differs", params={"task": "demo-2", "other": "demo-3"})
    assert (found.verdict, found.findings) == ("no", [])
    assert "both did the same" in found.answer


def strata(*words):
    wide = os.environ | {"COLUMNS": "200"}
    ended = subprocess.run([*STRATA, *words], env=wide, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_diff_of_two_tasks_prints_fork_point_and_changes(folder):
    printed = strata("diff", "demo-1", "demo-2", "--data", str(folder))
    assert "common up to step 4 of demo-1" in " ".join(printed.split())
    assert "config.lr: 0.1 here, 0.5 there" in printed


def test_list_of_runs_has_forks_below_their_parent(folder, tmp_path):
    printed = strata("runs", str(folder))
    column = printed.splitlines()[0].index("tasks")
    tasks = [line[column:].rstrip() for line in printed.splitlines()[1:]]
    assert tasks == [
        "demo-1",
        "└ demo-2 at step 4",
        "  └ demo-3 at step 6",
        "└ demo-4 at step 8",
    ]
    with open_timeline(folder) as timeline:
        for task in ("demo-2", "demo-1"):
            part = run_of(timeline, task, timeline.extent().to_ns + 1)
            archive(part, str(tmp_path), f"a-{task}")
    printed = strata("runs", str(tmp_path))
    names = [line.split("  ")[0] for line in printed.splitlines()[1:]]
    assert names == ["a-demo-1", "└ a-demo-2"]
    rows = map(json.loads, strata("runs", str(tmp_path), "--json").splitlines())
    assert [row["forks"] for row in rows if row["name"] == "a-demo-2"] == [
        [{"task": "demo-2", "parent": "demo-1", "step": 4}]
    ]
