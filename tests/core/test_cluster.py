"""Guards the doors of the core: one way in for commands, one for facts, and what a start of the
coordinator means."""

from strata.core.cluster import CoordinatorStarted, StartCoordinator, decide, fold
from strata.core.events import Now
from strata.core.scheduling import SubmitTask
from strata.core.state import Cluster, Rules, decode, encode
from strata.core.tasks import TaskSpec, TaskStateChanged, TaskSubmitted
from strata.core.workers import RegisterWorker, WorkerRejected
from strata.errors import AlreadyExists
from tests.core.scenario import every_kind
from tests.core.world import World

NOW = Now(1, 1)


def test_every_start_is_a_higher_incarnation():
    world = World()
    for _ in range(3):
        world.restart()
    assert [fact.incarnation for fact in world.facts(CoordinatorStarted)] == [1, 2, 3, 4]


def test_the_cluster_keeps_the_name_it_was_given_first_and_takes_the_newest_rules():
    world = World()
    rules = Rules(max_workers=3)
    world.do(StartCoordinator(cluster="another", release="9", rules=rules))
    assert (world.state.cluster, world.state.rules) == ("test", rules)
    assert world.one(CoordinatorStarted).release == "9"


def test_a_decision_returns_its_facts_and_its_answer():
    state = Cluster()
    outcome = decide(state, StartCoordinator(cluster="c", release="1"), NOW)
    assert (outcome.answer, outcome.refusal) == (1, None)
    assert [event.kind for event in outcome.events] == ["CoordinatorStarted"]
    assert fold(Cluster(), outcome.events) == state


def test_a_refusal_is_an_answer_of_its_own_and_keeps_the_facts_that_say_so():
    state = Cluster()
    decide(state, RegisterWorker(worker="a"), NOW)
    outcome = decide(state, RegisterWorker(worker="a"), NOW)
    assert isinstance(outcome.refusal, AlreadyExists)
    assert outcome.answer is None
    assert [type(event.body) for event in outcome.events] == [WorkerRejected]


def test_events_carry_the_moment_of_their_decision():
    outcome = decide(Cluster(), RegisterWorker(worker="a"), Now(wall_ns=7, mono_ns=9))
    assert {(event.wall_ns, event.mono_ns) for event in outcome.events} == {(7, 9)}


def test_what_follows_names_what_led_to_it():
    outcome = decide(Cluster(), SubmitTask(spec=TaskSpec(name="x", external=True)), NOW)
    submitted, changed = outcome.events
    assert isinstance(submitted.body, TaskSubmitted)
    assert isinstance(changed.body, TaskStateChanged)
    assert changed.cause == ("@0",)


def test_a_run_goes_on_from_a_snapshot_as_if_nothing_had_happened():
    log = every_kind().log
    for at in range(0, len(log), 7):
        state = decode(encode(fold(Cluster(), log[:at])))
        assert encode(fold(state, log[at:])) == encode(fold(Cluster(), log))
