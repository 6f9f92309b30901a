"""Registration: ids and incarnations that never repeat, fencing of the old incarnation, and the
difference between lost and left."""

import pytest

from strata.core.barriers.barrier_rules import ArriveAtBarrier
from strata.core.limits import LimitHit
from strata.core.rule_settings import Rules
from strata.core.tasks.task_lifecycle import TaskSubmitted
from strata.core.workers.fencing import WorkerFenced
from strata.core.workers.worker_lifecycle import (
    DeclareLost,
    ReattachWorker,
    RegisterWorker,
    ReportState,
    WorkerLost,
    WorkerRegistered,
    WorkerRejected,
    WorkerReturned,
    WorkerStateChanged,
)
from strata.errors import (
    AlreadyExists,
    Fenced,
    InvalidArgument,
    LimitExceeded,
    NotAllowedNow,
    NotFound,
)
from tests.core.world import World


@pytest.fixture
def world():
    return World()


def test_registration_fields_are_recorded(world):
    task = world.submit(1)
    details = {"hostname": "h1", "address": "10.0.0.1", "port": 7, "gpu_count": 8}
    (a,) = world.join(task, "a", memory_bytes=1 << 40, weight=2, metadata={"zone": "x"}, **details)
    kept = {name: getattr(a.worker, name) for name in details}
    assert kept == details
    assert (a.worker.memory_bytes, a.worker.weight, a.worker.metadata) == (
        1 << 40,
        2,
        {"zone": "x"},
    )
    assert a.worker.state == "initializing"


def test_worker_without_an_id_gets_one_of_its_own(world):
    ids = [world.register().id for _ in range(3)]
    assert len(set(ids)) == 3


def test_made_id_is_never_made_again(world):
    first = world.register()
    first.lost()
    assert world.register().id != first.id
    world.restart()
    assert world.register().id not in {first.id, "worker-2"}


@pytest.mark.parametrize("ended", [False, True])
def test_generated_id_never_equals_a_chosen_one(world, ended):
    chosen = world.register("worker-2")
    if ended:
        chosen.lost()
    assert world.register().id != chosen.id


def test_incarnations_are_never_used_twice(world):
    task = world.submit(1)
    used = []
    for worker in ["a", "b", "a", "b"]:
        (peer,) = world.join(task, worker)
        used.append(peer.incarnation)
        peer.lost()
        world.restart()
    used.append(world.agent("host").incarnation)
    assert used == sorted(set(used))


def test_repeated_registration_is_answered_again_without_facts(world):
    a = world.register("a", nonce="n1")
    again = world.register("a", nonce="n1")
    assert (again.incarnation, world.last) == (a.incarnation, [])


def test_repeated_registration_without_an_id_is_recognised_too(world):
    first = world.register(nonce="n1")
    assert world.register(nonce="n1").id == first.id


def test_empty_nonce_matches_no_worker(world):
    world.register("a")
    with pytest.raises(AlreadyExists):
        world.register("a")


def test_id_of_a_living_worker_cannot_be_claimed(world):
    a = world.register("a", nonce="n1", hostname="h1")
    with pytest.raises(AlreadyExists, match="h1"):
        world.register("a", nonce="n2")
    assert world.one(WorkerRejected).holder == a.incarnation
    assert a.worker.incarnation == a.incarnation


def test_registering_again_fences_the_old_incarnation(world):
    old = world.register("a")
    old.lost()
    new = world.register("a")
    assert new.incarnation > old.incarnation
    with pytest.raises(Fenced, match=f"incarnation {new.incarnation} has taken its place"):
        old.arrive()
    fenced = world.one(WorkerFenced)
    assert (fenced.incarnation, fenced.current) == (old.incarnation, new.incarnation)
    assert new.worker.state == "initializing"


def test_commands_of_a_lost_worker_are_refused_with_the_reason_of_its_loss(world):
    a = world.register("a")
    a.lost(reason="no beats for 30 s")
    with pytest.raises(Fenced, match="declared lost: no beats for 30 s"):
        a.arrive()
    assert world.one(WorkerFenced).current == 0


@pytest.mark.parametrize(
    "speak",
    [
        lambda peer: peer.arrive(),
        lambda peer: peer.enter(),
        lambda peer: peer.begin(1),
        lambda peer: peer.leave(),
        lambda peer: peer.world.do(ReattachWorker(**peer.me)),
        lambda peer: peer.world.do(ReportState(**peer.me, state="training")),
    ],
)
def test_commands_of_a_fenced_worker_change_nothing(world, speak):
    old = world.register("a")
    old.lost()
    world.register("a")
    with pytest.raises(Fenced):
        speak(old)
    assert [type(fact) for fact in world.last] == [WorkerFenced]


def test_refusal_is_recorded_once_per_incarnation(world):
    old = world.register("a")
    old.lost()
    world.register("a")
    for _ in range(3):
        with pytest.raises(Fenced):
            old.arrive()
    assert len(world.facts(WorkerFenced)) == 1


def test_each_fenced_incarnation_is_recorded_in_any_order(world):
    first = world.register("a")
    first.lost()
    second = world.register("a")
    second.lost()
    world.register("a")
    for zombie in (second, first):
        with pytest.raises(Fenced):
            zombie.arrive()
    assert [fact.incarnation for fact in world.facts(WorkerFenced)] == [
        second.incarnation,
        first.incarnation,
    ]


def test_unknown_incarnation_does_not_suppress_a_later_refusal(world):
    a = world.register("a")
    with pytest.raises(Fenced):
        world.do(ArriveAtBarrier(worker="a", incarnation=999, barrier="meet", request=1))
    a.lost()
    with pytest.raises(Fenced):
        a.arrive()
    assert world.one(WorkerFenced).incarnation == a.incarnation


def test_unknown_worker_is_told_to_register(world):
    with pytest.raises(NotFound, match="not registered"):
        world.do(ArriveAtBarrier(worker="nobody", incarnation=1, barrier="b", request=1))


def test_loss_carries_its_signal_and_evidence(world):
    a = world.register("a")
    evidence = {"silent_s": 31.0, "timeout_s": 30.0}
    world.do(DeclareLost(**a.me, signal="heartbeat", reason="no beats", evidence=evidence))
    lost = world.one(WorkerLost)
    assert (lost.signal, lost.evidence) == ("heartbeat", evidence)
    assert (a.worker.state, a.worker.reason, a.worker.rank) == ("lost", "no beats", -1)


def test_worker_is_lost_once_and_only_as_the_incarnation_that_was_meant(world):
    old = world.register("a")
    old.lost()
    old.lost()
    assert world.last == []
    new = world.register("a")
    old.lost()
    assert (world.last, new.worker.alive) == ([], True)
    world.do(DeclareLost(worker="nobody", incarnation=1, signal="exit", reason="gone"))
    assert world.last == []


def test_worker_that_leaves_is_not_lost(world):
    a, _ = world.register("a"), world.register("b")
    a.leave("done")
    changed = world.one(WorkerStateChanged)
    assert (changed.after, changed.outcome) == ("left", "done")
    assert world.facts(WorkerLost) == []
    a.lost()
    assert (world.last, a.worker.state) == ([], "left")


def test_worker_that_reports_failure_is_lost(world):
    a = world.register("a")
    a.leave("failed")
    assert world.one(WorkerLost).signal == "exit"
    assert a.worker.state == "lost"


def test_state_is_recorded_when_it_changes(world):
    a = world.register("a")
    world.do(ReportState(**a.me, state="training", step=3))
    changed = world.one(WorkerStateChanged)
    assert (changed.before, changed.after, changed.step) == ("initializing", "training", 3)
    world.do(ReportState(**a.me, state="training", step=4))
    assert world.last == []


def test_worker_reattaches_as_the_same_incarnation(world):
    a = world.register("a")
    world.restart()
    world.do(ReattachWorker(**a.me, reason="the coordinator was away"))
    assert world.one(WorkerReturned).reason == "the coordinator was away"
    assert a.worker.incarnation == a.incarnation


def test_worker_that_was_given_up_cannot_reattach(world):
    a = world.register("a")
    a.lost("absent", "it did not come back")
    with pytest.raises(Fenced, match="did not come back"):
        world.do(ReattachWorker(**a.me))


def test_workers_above_the_limit_are_refused_and_that_is_a_fact():
    world = World(Rules(max_workers=2))
    a = world.register("a", nonce="n1")
    world.register("b")
    with pytest.raises(LimitExceeded):
        world.register("c")
    assert (world.one(LimitHit).limit, world.one(LimitHit).value) == ("max_workers", 2)
    assert world.register("a", nonce="n1").incarnation == a.incarnation
    a.lost()
    assert world.register("c").worker.alive


@pytest.mark.parametrize("wrong", [{"worker": "x" * 201}, {"weight": 0}, {"weight": -1}])
def test_registration_that_makes_no_sense_is_refused(world, wrong):
    with pytest.raises(InvalidArgument):
        world.do(RegisterWorker(**wrong))
    assert world.last == []


def test_worker_joins_a_task_that_exists_and_has_not_ended(world):
    with pytest.raises(NotFound):
        world.register("a", task="nothing-1")
    task = world.submit(1)
    (a,) = world.join(task, "a")
    a.leave("done")
    with pytest.raises(NotAllowedNow, match="completed"):
        world.join(task, "b")
    assert [type(fact) for fact in world.last] == []


def test_worker_cannot_join_a_task_that_still_waits_for_its_slots(world):
    task = world.submit(1, external=False)
    assert task.state == "queued"
    with pytest.raises(NotAllowedNow):
        world.join(task, "a")


def test_workers_that_name_no_task_share_one(world):
    a, b = world.register("a"), world.register("b")
    assert a.task is b.task
    assert len(world.facts(TaskSubmitted)) == 1


def test_shared_task_ends_with_its_last_worker_and_the_next_gets_a_new_one(world):
    a = world.register("a")
    a.leave("done")
    assert a.task.state == "completed"
    assert world.register("b").task.id != a.task.id


def test_world_size_asked_for_holds_the_first_generation_back(world):
    a = world.register("a", world_size=2)
    assert a.worker.rank == -1
    b = world.register("b", world_size=2)
    assert [a.worker.rank, b.worker.rank] == [0, 1]


def test_registration_has_its_cause(world):
    world.do(RegisterWorker(worker="a", cause=("host.3.14",)))
    registered = world.one(WorkerRegistered)
    assert world.event(registered).cause == ("host.3.14",)
