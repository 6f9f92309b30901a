"""Folders that travel with tasks: what is recorded, and which lists of files are refused."""

import hashlib

import msgspec
import pytest

from strata.core.tasks.continuation import ContinueTask
from strata.core.tasks.placement import StopTask
from strata.core.tasks.task_forks import ForkTask
from strata.core.tasks.workdirs import (
    MAX_FILES,
    PIECE_BYTES,
    Workdir,
    WorkdirFile,
    WorkdirRecorded,
    check_workdir,
)
from strata.errors import InvalidArgument, LimitExceeded
from tests.core.world import World


def file(path="train.py", content=b"pass\n", mode=0o644, **given):
    digest = hashlib.sha256(content).hexdigest()
    made = {"path": path, "sha256": digest, "size_bytes": len(content), "mode": mode}
    return WorkdirFile(**made | given)


def folder(content=b"pass\n"):
    return Workdir([file("model.py"), file("train.py", content)])


def stopped(world, workdir):
    world.agent("host-1", slots=1)
    task = world.submit(1, external=False, entry="train.py", workdir=workdir)
    world.start(task)
    world.sync(task)
    world.train(task, 5)
    world.save(task, 5)
    world.do(StopTask(task=task.id))
    for peer in world.members(task):
        peer.leave("stopped")
    return task


def test_files_of_a_task_are_recorded_with_their_digests():
    world, workdir = World(), folder()
    world.agent("host-1", slots=1)
    task = world.submit(1, external=False, entry="train.py", workdir=workdir)
    (recorded,) = world.facts(WorkdirRecorded)
    assert (recorded.task, recorded.digest) == (task.id, workdir.digest)
    assert recorded.files == workdir.files
    assert (recorded.file_count, recorded.size_bytes) == (2, 10)
    assert task.workdir.digest == task.spec.workdir == workdir.digest


def test_continued_task_records_its_folder_again_only_if_it_changed():
    world, before, after = World(), folder(), folder(b"print()\n")
    task = stopped(world, before)
    world.do(ContinueTask(task=task.id, spec=task.spec, workdir=before))
    assert len(world.facts(WorkdirRecorded)) == 1
    world.do(StopTask(task=task.id))
    spec = msgspec.structs.replace(task.spec, workdir=after.digest)
    world.do(ContinueTask(task=task.id, spec=spec, workdir=after))
    assert [each.digest for each in world.facts(WorkdirRecorded)] == [before.digest, after.digest]
    assert task.workdir.digest == after.digest


def test_fork_records_the_folder_of_its_parent_as_its_own():
    world, workdir = World(), folder()
    task = stopped(world, workdir)
    fork = world.do(ForkTask(task=task.id, spec=task.spec, workdir=workdir))
    assert [each.task for each in world.facts(WorkdirRecorded)] == [task.id, fork.id]


def test_task_whose_workers_the_user_starts_has_no_folder():
    with pytest.raises(InvalidArgument, match="the user starts those of this task"):
        World().submit(1, workdir=folder())


@pytest.mark.parametrize("entry", ["other.py", "/work/train.py", "./train.py", "bin/run"])
def test_entry_must_be_a_file_of_the_folder(entry):
    with pytest.raises(InvalidArgument, match="is not in the folder of the task"):
        World().submit(1, external=False, entry=entry, workdir=folder())


def test_digest_depends_on_every_path_content_and_mode():
    found = {
        Workdir([each]).digest
        for each in (file(), file("b.py"), file(content=b"x"), file(mode=0o755))
    }
    assert len(found) == 4


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../up.py", "a/../../up.py", "a//b", "./a", "a/", "", "a\nb", "p" * 2000],
)
def test_path_that_a_host_must_not_unpack_is_refused(path):
    with pytest.raises(InvalidArgument, match="cannot be used"):
        check_workdir(Workdir([file(path)]), 1000)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([], "no files"),
        ([file("b"), file("a")], "not sorted"),
        ([file("a"), file("a")], "not sorted and unique"),
        ([file("a"), file("a/b")], "is a file and a folder"),
        ([file(sha256="x" * 64)], "digests of 'train.py' are wrong"),
        ([file(pieces=["ab" * 32])], "digests of 'train.py' are wrong"),
        ([file(mode=0o4755)], "mode of 'train.py'"),
        ([file("a"), file("b", size_bytes=4)], "two sizes"),
    ],
)
def test_list_of_files_that_is_wrong_is_refused(files, why):
    with pytest.raises(InvalidArgument, match=why):
        check_workdir(Workdir(files), 1000)


def test_folder_above_the_limit_names_its_largest_files():
    files = [file("a.py"), file("data.bin", b"x" * 900), file("z.py", b"y" * 200)]
    check_workdir(Workdir(files), 1105)
    with pytest.raises(LimitExceeded, match=r"1,105 bytes.*data\.bin \(900 bytes\), z\.py") as over:
        check_workdir(Workdir(files), 1104)
    assert ".strataignore" in over.value.hint
    many = [file(f"{number:05}.py") for number in range(MAX_FILES + 1)]
    with pytest.raises(LimitExceeded, match=f"{MAX_FILES + 1} files"):
        check_workdir(Workdir(many), 2**30)


def test_large_file_has_a_digest_for_each_piece():
    sizes = [PIECE_BYTES, PIECE_BYTES, 1]
    pieces = [hashlib.sha256(bytes(size)).hexdigest() for size in sizes]
    large = file("big.bin", bytes(sum(sizes)), pieces=pieces)
    check_workdir(Workdir([large]), 2**30)
    assert Workdir([large]).pieces == dict(zip(pieces, sizes, strict=True))
