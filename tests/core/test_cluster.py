"""The entry points of the core, for commands and for facts, and the start of a coordinator."""

from strata.core.cluster import CoordinatorStarted, StartCoordinator, decide, fold
from strata.core.events import Now
from strata.core.rule_settings import Rules
from strata.core.state import Cluster, decode, encode
from strata.core.task_spec import TaskSpec
from strata.core.tasks.placement import SubmitTask
from strata.core.tasks.task_lifecycle import TaskStateChanged, TaskSubmitted
from strata.core.workers.worker_lifecycle import RegisterWorker, WorkerRejected
from strata.errors import AlreadyExists
from tests.core.scenario import every_kind
from tests.core.world import World

NOW = Now(1, 1)


def test_each_start_of_the_coordinator_is_a_higher_incarnation():
    world = World()
    for _ in range(3):
        world.restart()
    assert [fact.incarnation for fact in world.facts(CoordinatorStarted)] == [1, 2, 3, 4]


def test_cluster_keeps_the_name_it_was_given_first_and_takes_the_newest_rules():
    world = World()
    rules = Rules(max_workers=3)
    world.do(StartCoordinator(cluster="another", release="9", rules=rules))
    assert (world.state.cluster, world.state.rules) == ("test", rules)
    assert world.one(CoordinatorStarted).release == "9"


def test_decision_returns_its_facts_and_its_answer():
    state = Cluster()
    outcome = decide(state, StartCoordinator(cluster="c", release="1"), NOW)
    assert (outcome.answer, outcome.refusal) == (1, None)
    assert [event.kind for event in outcome.events] == ["CoordinatorStarted"]
    assert fold(Cluster(), outcome.events) == state


def test_refusal_keeps_the_facts_that_record_it():
    state = Cluster()
    decide(state, RegisterWorker(worker="a"), NOW)
    outcome = decide(state, RegisterWorker(worker="a"), NOW)
    assert isinstance(outcome.refusal, AlreadyExists)
    assert outcome.answer is None
    assert [type(event.body) for event in outcome.events] == [WorkerRejected]


def test_events_have_the_time_of_their_decision():
    outcome = decide(Cluster(), RegisterWorker(worker="a"), Now(wall_ns=7, mono_ns=9))
    assert {(event.wall_ns, event.mono_ns) for event in outcome.events} == {(7, 9)}


def test_facts_name_their_causes():
    outcome = decide(Cluster(), SubmitTask(spec=TaskSpec(name="x", external=True)), NOW)
    submitted, changed = outcome.events
    assert isinstance(submitted.body, TaskSubmitted)
    assert isinstance(changed.body, TaskStateChanged)
    assert changed.cause == ("@0",)


def test_run_continues_from_a_snapshot_with_the_same_facts():
    log = every_kind().log
    for at in range(0, len(log), 7):
        state = decode(encode(fold(Cluster(), log[:at])))
        assert encode(fold(state, log[at:])) == encode(fold(Cluster(), log))
