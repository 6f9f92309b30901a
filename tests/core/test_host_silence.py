"""Unreachable hosts: a host that stops sending heartbeats is lost as a whole, and no replacement
is placed on it because one of its workers timed out first."""

from strata.core.generations.generation_members import GenerationChanged
from strata.core.rule_settings import Timeouts
from strata.core.tasks.task_lifecycle import TaskPlaced
from strata.core.workers.declared_losses import DeclareLosses
from strata.core.workers.heartbeats import Beat
from strata.core.workers.host_agents import AgentLost
from strata.core.workers.liveness import Watch
from strata.core.workers.worker_lifecycle import WorkerLost
from tests.core.world import SECOND_NS, World

TIMEOUT_S = 30


class Hosts:
    """Two workers on each of two hosts, and a watch with a heartbeat of each at second 0."""

    def __init__(self, **spec):
        self.world = World()
        for agent in "ab":
            self.world.agent(agent, 4)
        self.task = self.world.submit(4, external=False, **spec)
        self.world.start(self.task)
        self.world.sync(self.task)
        self.watch = Watch(Timeouts(heartbeat_timeout_s=TIMEOUT_S, reattach_grace_s=TIMEOUT_S))
        self.watch.adopt(self.world.state, 0)
        for agent in "ab":
            self.agent_beats(agent, 0)
        for worker in self.task.members:
            self.beats(worker, 0)

    def on(self, agent):
        return [w for w, p in self.task.placements.items() if p.agent == agent]

    def beats(self, worker, second):
        peer = self.world.peers[worker]
        assert self.watch.beat(worker, peer.incarnation, Beat(), int(second * SECOND_NS))

    def agent_beats(self, agent, second):
        incarnation = self.world.state.agents[agent].incarnation
        assert self.watch.agent_beat(agent, incarnation, int(second * SECOND_NS))

    def look(self, second):
        """Decide on expired timeouts; returns the recorded facts."""
        position = len(self.world.log)
        for command in self.watch.overdue(self.world.state, int(second * SECOND_NS)):
            self.world.do(command)
        recorded = self.world.log[position:]
        for event in recorded:
            self.watch.follow(event)
        return [event.body for event in recorded]

    def run_until(self, second, alive):
        """Check whenever the watch requires it; the hosts in `alive` send heartbeats each
        second."""
        found = []
        for now in range(1, second + 1):
            for agent in alive:
                self.agent_beats(agent, now)
                for worker in self.on(agent):
                    if self.world.peers[worker].worker.alive:
                        self.beats(worker, now)
            while (due_ns := self.watch.next_ns()) is not None and due_ns <= now * SECOND_NS:
                found += [(due_ns / SECOND_NS, fact) for fact in self.look(due_ns / SECOND_NS)]
        return found


def of(found, kind):
    return [(second, fact) for second, fact in found if isinstance(fact, kind)]


def test_host_that_dies_between_beats_is_lost_as_a_whole_and_replaced_elsewhere():
    hosts = Hosts(min_workers=1)
    first, second = hosts.on("a")
    hosts.beats(second, 3)
    hosts.agent_beats("a", 4)  # so the first worker times out four seconds before its host
    found = hosts.run_until(60, alive="b")
    ((lost_s, lost),) = of(found, AgentLost)
    assert (lost_s, lost.agent) == (34.0, "a")
    assert [(at, fact.worker, fact.signal) for at, fact in of(found, WorkerLost)] == [
        (34.0, first, "agent"),
        (34.0, second, "agent"),
    ]
    assert {fact.evidence["silence_s"] for _, fact in of(found, WorkerLost)} == {30.0}
    assert len(of(found, GenerationChanged)) == 1
    ((_, placed),) = of(found, TaskPlaced)
    assert {p.agent for p in placed.placements.values()} == {"b"}


def test_worker_without_heartbeats_is_not_said_to_hang():
    """Its step may have ended since its last heartbeat: a hang is what heartbeats report."""
    world = World()
    (a,) = world.join(world.submit(1), "a")
    watch = Watch(Timeouts(heartbeat_timeout_s=TIMEOUT_S, hang_floor_s=5, hang_report_s=0))
    watch.adopt(world.state, 0)

    def beats(second, step):
        watch.beat("a", a.incarnation, Beat(step=step, training=True), int(second * SECOND_NS))

    def losses(second):
        found = watch.overdue(world.state, int(second * SECOND_NS))
        return [(loss.signal, loss.evidence) for each in found for loss in each.workers]

    for second in range(10):
        beats(second, step=second)
    assert losses(20) == [], "no heartbeat since step 9 began"
    beats(20, step=9)
    ((signal, evidence),) = losses(21)
    assert (signal, evidence["stuck_s"]) == ("hang", 12.0)


def test_silent_worker_of_a_living_host_is_lost_at_its_own_deadline():
    hosts = Hosts(min_workers=1)
    quiet, other = hosts.on("a")
    for now in range(1, 30):
        hosts.agent_beats("a", now)
        hosts.beats(other, now)
    found = hosts.run_until(31, alive="b")
    assert [(at, fact.worker, fact.signal) for at, fact in of(found, WorkerLost)] == [
        (30.0, quiet, "heartbeat")
    ]
    assert of(found, TaskPlaced)[0][1].placements[quiet].agent == "a"


def test_loss_of_a_worker_is_delayed_only_while_its_host_is_silent():
    hosts = Hosts(min_workers=1)
    quiet, other = hosts.on("a")
    hosts.agent_beats("a", 10)
    for now in range(1, 33):
        hosts.beats(other, now)
    assert of(hosts.run_until(31, alive="b"), WorkerLost) == [], "its host is silent for 21 s"
    hosts.agent_beats("a", 31.5)
    lost = [fact for fact in hosts.look(32) if isinstance(fact, WorkerLost)]
    assert [(fact.worker, fact.signal) for fact in lost] == [(quiet, "heartbeat")]


def connections_break(hosts, agent, second):
    for worker in hosts.on(agent):
        peer = hosts.world.peers[worker]
        hosts.watch.disconnected(worker, peer.incarnation, int(second * SECOND_NS))


def test_broken_connections_of_a_host_whose_agent_is_silent_are_replaced_elsewhere():
    hosts = Hosts(min_workers=1)
    connections_break(hosts, "a", 15)
    facts = hosts.look(17)
    losses = [fact for fact in facts if isinstance(fact, WorkerLost)]
    assert [(fact.signal, fact.evidence["host_silence_s"]) for fact in losses] == [
        ("connection", 17.0)
    ] * 2
    (placed,) = [fact for fact in facts if isinstance(fact, TaskPlaced)]
    assert {p.agent for p in placed.placements.values()} == {"b"}


def test_broken_connections_of_a_host_whose_agent_is_disconnected_are_replaced_elsewhere():
    hosts = Hosts(min_workers=1)
    hosts.agent_beats("a", 14)
    connections_break(hosts, "a", 15)
    incarnation = hosts.world.state.agents["a"].incarnation
    hosts.watch.agent_disconnected("a", incarnation, 15 * SECOND_NS)
    (placed,) = [fact for fact in hosts.look(17) if isinstance(fact, TaskPlaced)]
    assert {p.agent for p in placed.placements.values()} == {"b"}


def test_broken_connections_of_a_host_whose_agent_reconnected_are_replaced_there():
    hosts = Hosts(min_workers=1)
    hosts.agent_beats("a", 14)
    connections_break(hosts, "a", 15)
    incarnation = hosts.world.state.agents["a"].incarnation
    hosts.watch.agent_disconnected("a", incarnation, 15 * SECOND_NS)
    hosts.agent_beats("a", 16)
    facts = hosts.look(17)
    assert all(
        "host_silence_s" not in fact.evidence for fact in facts if isinstance(fact, WorkerLost)
    )
    (placed,) = [fact for fact in facts if isinstance(fact, TaskPlaced)]
    assert {p.agent for p in placed.placements.values()} == {"a"}


def test_connections_that_break_within_milliseconds_are_one_generation():
    hosts = Hosts(min_workers=1)
    for number, worker in enumerate(hosts.task.members[:3]):
        hosts.watch.disconnected(
            worker, hosts.world.peers[worker].incarnation, (1_000 + 3 * number) * 1_000_000
        )
    found = []
    while (due_ns := hosts.watch.next_ns()) is not None and due_ns < 5 * SECOND_NS:
        found += hosts.look(due_ns / SECOND_NS)
    assert len([fact for fact in found if isinstance(fact, WorkerLost)]) == 3
    assert len([fact for fact in found if isinstance(fact, GenerationChanged)]) == 1


def test_silent_worker_without_an_agent_is_lost_at_its_own_deadline():
    world = World()
    (a,) = world.join(world.submit(1), "a")
    watch = Watch(Timeouts(heartbeat_timeout_s=TIMEOUT_S))
    watch.adopt(world.state, 0)
    watch.beat("a", a.incarnation, Beat(), 0)
    (command,) = watch.overdue(world.state, TIMEOUT_S * SECOND_NS)
    assert isinstance(command, DeclareLosses)
    assert [loss.signal for loss in command.workers] == ["heartbeat"]


def test_workers_absent_after_a_restart_are_declared_lost_together():
    hosts = Hosts(min_workers=1)
    hosts.watch = Watch(Timeouts(heartbeat_timeout_s=TIMEOUT_S, reattach_grace_s=TIMEOUT_S))
    hosts.watch.adopt(hosts.world.state, 0)
    facts = hosts.look(TIMEOUT_S)
    assert len([fact for fact in facts if isinstance(fact, AgentLost)]) == 2
    assert len([fact for fact in facts if isinstance(fact, WorkerLost)]) == 4
    assert len([fact for fact in facts if isinstance(fact, GenerationChanged)]) == 1
