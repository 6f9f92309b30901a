"""Guards the answers of `why`: a fault is injected into a simulated run, and the verdict must name
it.

If the log has a hole at that time, the verdict must be `unknown`.
"""

import pytest
from msgspec import structs

from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.hosts.host_record import ReportHost
from strata.core.tasks.placement import StopTask
from strata.errors import InvalidArgument, NotFound
from strata.timeline.why import barrier_stalls
from strata.timeline.why.questions import QUESTIONS, why_event
from tests.timeline.planted import Planted, worker

STARTED_MS = 1_750_000_000_000


def crash(sim):
    worker(sim).exit(137, 9)


def hang(sim):
    worker(sim).hung = True


def stop_for(seconds):
    """Stop a worker right after its next heartbeat, for this long."""

    def stop(sim):
        stopped = worker(sim)

        def with_a_beat(beating, beat):
            if beating is stopped:
                sim.on_beat.remove(with_a_beat)
                stopped.pause()
                sim.world.after(seconds, stopped.resume)

        sim.on_beat.append(with_a_beat)

    return stop


def cut_host_for(seconds):
    def cut(sim):
        host = worker(sim).host
        sim.network.cut(host)
        sim.world.after(seconds, sim.network.heal, host)

    return cut


def the_lost(run):
    """The worker that was lost first; `first_loss` is the moment of the question."""
    return run.kinds("WorkerLost")[0].text("worker")


def first_loss(run):
    lost = run.kinds("WorkerLost")[0]
    return {"worker": lost.text("worker"), "time_ms": lost.at_ns / 1e6}


@pytest.fixture(scope="module")
def stopped():
    """Stopped soon after a heartbeat: declared lost about a second before it continues."""
    return Planted(stop_for(30.6))


@pytest.fixture(scope="module")
def parted():
    return Planted(cut_host_for(45), workers_per_host=2)


class TestLosses:
    def test_crash_is_a_real_death(self, crashed):
        answer = crashed.why("lost", worker=the_lost(crashed))
        assert answer.verdict == "yes"
        assert "crashed" in answer.text
        assert "signal 9" in answer.text
        kinds = [each.record.kind for each in answer.chain]
        assert kinds.index("WorkerExited") < kinds.index("WorkerLost")

    def test_lost_without_a_worker_is_about_the_last_loss(self, crashed):
        worker = the_lost(crashed)
        for question in ("lost", "unfinished"):
            assert crashed.why(question) == crashed.why(question, worker=worker)

    def test_paused_process_was_not_dead(self, stopped):
        answer = stopped.why("lost", **first_loss(stopped))
        assert answer.verdict == "no"
        assert "a paused process" in answer.text
        assert answer.cost.seconds > 30

    def test_unreachable_host_was_a_partition(self, parted):
        answer = parted.why("lost", **first_loss(parted))
        assert answer.verdict == "no"
        assert "partition" in answer.text

    def test_process_ended_after_a_heartbeat_timeout_had_not_crashed(self):
        run = Planted(lambda sim: worker(sim).pause())
        answer = run.why("lost", **first_loss(run))
        assert answer.verdict == "no"
        assert "a paused process" in answer.text
        assert "its process ended" in answer.text

    def test_crash_on_the_same_host_does_not_make_a_paused_process_a_partition(self):
        def plant(sim):
            crashed, stopped = list(sim.workers.values())[:2]
            crashed.exit(137, 9)
            stopped.pause()
            sim.world.after(60, stopped.resume)

        run = Planted(plant)
        silent = next(loss for loss in run.kinds("WorkerLost") if loss.text("signal") != "exit")
        answer = run.why("lost", worker=silent.text("worker"), time_ms=silent.at_ns / 1e6)
        assert answer.verdict == "no"
        assert "a paused process" in answer.text

    def test_hang_is_distinguished_from_a_death(self):
        run = Planted(hang)
        answer = run.why("lost", worker=the_lost(run))
        assert answer.verdict == "no"
        assert "hung" in answer.text
        assert answer.chain[0].record.kind == "StepFinished"

    def test_loss_without_an_exit_is_unknown(self):
        def vanish(sim):
            gone = worker(sim)
            gone.alive = False
            gone.drop()

        run = Planted(vanish, policy="continue")
        answer = run.why("lost", worker=the_lost(run))
        assert answer.verdict == "unknown"

    def test_what_was_open_when_it_died(self, crashed):
        answer = crashed.why("unfinished", worker=the_lost(crashed))
        assert answer.verdict == "yes"
        assert "training a batch" in answer.text
        assert answer.findings, "its last second never arrived, and that is said"

    def test_loss_that_did_not_happen_is_refused(self, calm):
        with pytest.raises(NotFound):
            calm.why("lost", worker="train-1-w0")


class TestTimeouts:
    def test_longer_timeout_would_have_avoided_a_short_pause(self, stopped):
        assert stopped.why("timeout", **first_loss(stopped), timeout_s=60).verdict == "no"

    def test_slightly_longer_timeout_would_not_have_helped(self, stopped):
        assert stopped.why("timeout", **first_loss(stopped), timeout_s=30.5).verdict == "yes"

    def test_shorter_timeout_changes_nothing(self, stopped):
        assert stopped.why("timeout", **first_loss(stopped), timeout_s=10).verdict == "yes"

    def test_longer_timeout_would_have_avoided_a_partition(self, parted):
        assert parted.why("timeout", **first_loss(parted), timeout_s=60).verdict == "no"
        assert parted.why("timeout", **first_loss(parted), timeout_s=35).verdict == "yes"

    def test_timeout_answer_is_unknown_if_the_process_was_ended(self):
        run = Planted(stop_for(50))
        assert run.why("timeout", **first_loss(run), timeout_s=60).verdict == "unknown"

    def test_no_timeout_helps_a_crash(self, crashed):
        answer = crashed.why("timeout", worker=the_lost(crashed), timeout_s=600)
        assert answer.verdict == "yes"


class TestMessages:
    @staticmethod
    def cut_link(sim):
        sender = worker(sim, 1)
        sim.cut_peers[sender.name, sim.next_rank(sender).name] = []

    def test_delivered_message_is_a_yes(self, calm):
        sent = calm.kinds("MessageSent")[10]
        answer = calm.why("delivery", message=sent.text("message"))
        assert answer.verdict == "yes"
        assert [each.record.kind for each in answer.chain] == ["MessageSent", "MessageReceived"]

    def test_message_lost_on_a_broken_link_is_named(self):
        run = Planted(self.cut_link)
        sent = [r for r in run.kinds("MessageSent") if r.at_ns > (STARTED_MS + 450_000) * 10**6]
        got = {r.text("message") for r in run.kinds("MessageReceived")}
        lost = next(r for r in sent if r.text("message") not in got)
        answer = run.why("delivery", message=lost.text("message"))
        assert answer.verdict == "no"
        assert "link" in answer.text

    def test_hole_in_the_receivers_log_makes_delivery_unknown(self):
        def cut_and_forget(sim):
            self.cut_link(sim)
            receiver = sim.next_rank(worker(sim, 1))
            for after_s in range(60, 90):  # a message of each step is among what is lost
                sim.world.after(after_s, receiver.witness.lose)

        run = Planted(cut_and_forget)
        gap = run.queries.trust().holes[0]
        sent = run.kinds("MessageSent")
        got = {r.text("message") for r in run.kinds("MessageReceived")}
        lost = [r for r in sent if r.text("message") not in got]
        inside = next(r for r in lost if gap.from_ns - 10**9 <= r.at_ns <= gap.to_ns)
        answer = run.why("delivery", message=inside.text("message"))
        assert answer.verdict == "unknown"
        assert "hole" in answer.text

    def test_rejection_is_answered_with_its_reason(self):
        def late(sim):
            sender = worker(sim, 1)
            peer = sim.next_rank(sender)
            sim.cut_peers[sender.name, peer.name] = []
            sim.world.after(30, worker(sim, 3).exit, 137, 9)
            sim.world.after(90, sim.heal_peers, sender.name, peer.name)

        run = Planted(late)
        refused = run.kinds("MessageRejected")[0]
        answer = run.why("delivery", message=refused.text("message"))
        assert answer.verdict == "no"
        assert "rejected" in answer.text
        assert "generation" in answer.text

    def test_receiver_that_was_down_is_named(self):
        def cut_then_crash(sim):
            self.cut_link(sim)
            sim.world.after(20, sim.next_rank(worker(sim, 1)).exit, 137, 9)

        run = Planted(cut_then_crash)
        lost = run.kinds("WorkerLost")[0]
        before = [r for r in run.kinds("MessageSent") if r.at_ns < lost.at_ns]
        sent = [r for r in before if lost.text("worker") in r.get("to")][-1]
        answer = run.why("delivery", message=sent.text("message"))
        assert answer.verdict == "no"
        assert "down" in answer.text

    def test_never_sent_by_a_complete_log(self, calm):
        answer = calm.why("delivery", message="nonsense", sender="train-1-w0")
        assert answer.verdict == "no"
        assert "never sent" in answer.text

    def test_request_that_was_answered(self, calm):
        asked = calm.kinds("RequestSubmitted")[0]
        answer = calm.why("request", worker=asked.node, request=asked.get("request"))
        assert answer.verdict == "yes"


class TestBarriers:
    def test_quick_barrier_did_not_stall(self, calm):
        assert calm.why("barrier", barrier="step-25", task="train-1").verdict == "no"

    def test_late_worker_is_named_with_its_activity_and_the_cost(self, calm):
        opened = calm.kinds("BarrierOpened")[0]
        at_s = opened.at_ns / 1e9 - STARTED_MS / 1000 - 0.004

        def stop(sim):
            stopped = worker(sim)
            stopped.pause()
            sim.world.after(20, stopped.resume)

        run = Planted(stop, at_s=at_s)
        answer = run.why("barrier", barrier="step-25", task="train-1")
        assert answer.verdict == "yes"
        assert worker_of_rank(run, 1) in answer.text
        assert answer.cost.workers == 4
        assert 40 < answer.cost.seconds < 80

    def test_worker_with_a_late_clock_is_not_released_before_the_end(self, calm):
        seen = barrier_stalls._round(calm.search, calm.kinds("BarrierOpened")[0])
        later = structs.replace(seen, end_ns=seen.end_ns + 2 * 10**9)
        lines = [barrier_stalls._line(calm.search, later, arrival) for arrival in seen.came]
        assert len(lines) == 4
        assert all("was released after 2." in line for line in lines), lines

    def test_waiting_barrier_is_open(self, calm):
        opened = calm.kinds("BarrierOpened")[0]
        run = Planted()
        store = run.sim.coordinator.disk
        del store._rows[
            next(i for i, r in enumerate(store._rows) if r.stop > opened.event.seq) + 1 :
        ]
        cut = Planted.over(run.sim)
        assert cut.why("barrier", barrier="step-25", task="train-1").verdict == "open"


class TestSlowness:
    def test_straggler_is_slow_in_compute(self):
        def straggle(sim):
            worker(sim).slowness = 3.0
            sim.world.after(300, setattr, worker(sim), "slowness", 1.0)

        run = Planted(straggle)
        at = STARTED_MS + 700_000
        name = worker_of_rank(run, 1)
        answer = run.why("slow", worker=name, time_ms=at)
        assert answer.verdict == "yes"
        assert "compute" in answer.text
        others = [n for n in run.sim.workers if n.startswith("train-1") and n != name]
        assert run.why("slow", worker=others[0], time_ms=at).verdict == "no"

    def test_slow_disk_is_slow_in_data(self):
        def slow_disk(sim):
            worker(sim).data_s = 12.0

        run = Planted(slow_disk)
        name = worker_of_rank(run, 1)
        answer = run.why("slow", worker=name, time_ms=STARTED_MS + 700_000)
        assert answer.verdict == "yes"
        assert "data" in answer.text

    def test_throughput_drop_is_attributed_to_the_loss(self):
        run = Planted(hang)
        lost = run.kinds("WorkerLost")[0]
        began_ms = lost.at_ns / 1e6 - lost.get("evidence")["stuck_s"] * 1000
        answer = run.why("throughput", time_ms=began_ms, task="train-1")
        assert answer.verdict == "yes"
        assert "lost" in answer.text

    def test_steady_throughput_has_no_suspects(self, calm):
        assert calm.why("throughput", time_ms=STARTED_MS + 600_000).verdict == "no"


class TestState:
    def test_generation_change_is_explained_by_the_crash(self, crashed):
        answer = crashed.why("changed", task="train-1", generation=2)
        assert answer.verdict == "yes"
        assert [each.record.kind for each in answer.chain] == [
            "WorkerExited",
            "WorkerLost",
            "GenerationChanged",
        ]

    def test_which_model_was_restored_and_from_which_candidates(self, crashed):
        answer = crashed.why("restored", task="train-1", generation=3)
        assert answer.verdict == "yes"
        assert "candidates" in answer.findings[0]

    def test_move_after_a_loss_was_minimal(self):
        run = Planted(crash, policy="continue")
        moved = run.kinds("AssignmentChanged")[-1]
        part = moved.get("moves")[0].first
        answer = run.why("moved", shard=part, task="train-1")
        assert answer.verdict == "yes"
        assert "was lost" in answer.text

    def test_quick_recovery_is_not_slow(self, crashed):
        answer = crashed.why("recovery", task="train-1")
        assert answer.verdict == "no"
        assert len(answer.findings) == 4

    def test_recoveries_without_progress_are_a_loop(self):
        def again_and_again(sim):
            for pause_s in (0, 25, 50, 75):
                sim.world.after(pause_s, lambda: worker(sim).exit(1))

        run = Planted(again_and_again, step_s=40.0, hours=0.5)
        assert run.why("recovery", task="train-1").verdict == "yes"

    def test_rollback_names_the_steps_trained_again(self):
        def lose_everyone(sim):
            for each in list(sim.workers.values()):
                if each.alive:
                    each.exit(137, 9)

        run = Planted(lose_everyone)
        answer = run.why("samples", task="train-1")
        assert answer.verdict == "yes"
        assert "trained again" in answer.text

    def test_without_a_rollback_no_sample_is_trained_twice(self, crashed):
        assert crashed.why("samples", task="train-1").verdict == "no"


class TestCheckpoints:
    def test_committed_checkpoint_is_a_yes(self, calm):
        begun = calm.kinds("CheckpointStarted")[0]
        assert calm.why("checkpoint", checkpoint=begun.text("checkpoint")).verdict == "yes"

    def test_failed_checkpoint_names_the_lost_rank(self, calm):
        begun = calm.kinds("CheckpointStarted")[2]
        at_s = begun.at_ns / 1e9 - STARTED_MS / 1000 + 1.0
        run = Planted(crash, at_s=at_s)
        failed = run.kinds("CheckpointFailed")[0]
        answer = run.why("checkpoint", checkpoint=failed.text("checkpoint"))
        assert answer.verdict == "no"
        assert "rank 1" in " ".join(answer.findings)
        assert "lost before its part was stored" in " ".join(answer.findings)


class TestAsking:
    def test_questions_are_numbered_in_order(self):
        assert [question.number for question in QUESTIONS.values()] == list(range(1, 20))

    def test_unknown_question_or_parameter_is_refused(self, calm):
        with pytest.raises(InvalidArgument):
            calm.why("nonsense")
        with pytest.raises(InvalidArgument):
            calm.why("lost", planet="mars")
        with pytest.raises(InvalidArgument, match="needs worker"):
            calm.why("slow")
        with pytest.raises(InvalidArgument):
            calm.why("timeout", worker="w", timeout_s="soon")

    def test_why_of_any_event(self, crashed):
        for record in crashed.timeline.records():
            if record.kind in ("WorkerLost", "GenerationChanged", "BarrierReleased", "TaskPlaced"):
                name, answer = why_event(crashed.search, record)
                assert answer.verdict in ("yes", "no", "open", "unknown")
                assert answer.chain
                assert name

    def test_whole_log_is_trusted(self, calm):
        assert calm.why("trust").verdict == "yes"

    def test_run_does_not_differ_from_itself(self, calm, crashed, tmp_path):
        assert calm.why("differs", other=calm.saved(tmp_path / "same")).verdict == "no"
        answer = calm.why("differs", other=crashed.saved(tmp_path / "other"))
        assert answer.verdict == "yes"
        assert "lost" in answer.text


def worker_of_rank(run, rank):
    """The worker that had a rank in the first generation."""
    seats = dict(run.kinds("GenerationChanged")[0].get("seats"))
    return seats[rank]


def test_hang_names_new_gpu_errors_of_the_host():
    def measured_then_hung(sim):
        hung = worker(sim)
        (agent,) = sim.coordinator.life.engine.kernel.state.agents.values()
        for xids in (1, 1, 2):
            health = HostHealth(gpus=[GpuHealth(index=0, xid_errors=xids, last_xid=13)])
            report = ReportHost(agent=agent.id, incarnation=agent.incarnation, health=health)
            sim.coordinator.order(report)
        hung.hung = True

    answer = Planted(measured_then_hung).why("hang", task="train-1")
    assert answer.verdict == "yes"
    errors = [each for each in answer.findings if "GPU 0" in each]
    assert len(errors) == 2
    assert all("rank 1" in each and "Xid 13" in each for each in errors)


def measured_around_a_crash(before, after, until_s):
    """A worker is killed between two measurements of the OOM kills of its host."""

    def plant(sim):
        killed = worker(sim)

        def measure(kills):
            (agent,) = sim.coordinator.life.engine.kernel.state.agents.values()
            host, cgroup = kills
            health = HostHealth(oom_kills=host, cgroup_oom_kills=cgroup)
            report = ReportHost(agent=agent.id, incarnation=agent.incarnation, health=health)
            sim.coordinator.order(report)

        if before is not None:
            measure(before)
        sim.world.after(20.0, killed.exit, 137, 9)
        if after is not None:
            sim.world.after(20.0 + until_s, measure, after)

    return Planted(plant)


@pytest.mark.parametrize(
    ("before", "after", "until_s", "expected"),
    [
        ((3, 0), (4, 1), 5.0, "probably killed by the kernel's OOM killer: 1 OOM kill was counted"),
        ((3, 0), (4, 0), 5.0, "possibly killed by the kernel's OOM killer: 1 OOM kill was counted"),
        ((3, 0), (4, 1), -8.0, "probably killed by the kernel's OOM killer"),
        ((3, 0), (3, 0), 5.0, "no OOM kill was counted on its host"),
        ((3, 0), (4, 1), 60.0, "whether the kernel's OOM killer ended it is not recorded"),
        (None, (4, 1), 5.0, "whether the kernel's OOM killer ended it is not recorded"),
        ((3, 0), None, 5.0, "whether the kernel's OOM killer ended it is not recorded"),
        ((None, None), (None, None), 5.0, "OOM killer ended it is not recorded"),
        ((3, 2), (0, 0), 5.0, "OOM killer ended it is not recorded"),
    ],
)
def test_killed_process_is_ascribed_to_the_oom_killer_only_if_it_was_counted(
    before, after, until_s, expected
):
    run = measured_around_a_crash(before, after, until_s)
    answer = run.why("lost", worker=the_lost(run))
    assert answer.verdict == "yes"
    assert "signal 9" in answer.text
    assert expected in answer.text
    shown = [each.record.kind for each in answer.chain]
    assert ("HostMeasured" in shown) == ("killed by" in answer.text)


def test_process_that_is_killed_with_its_task_did_not_crash():
    def stop_and_kill(sim):
        (task,) = sim.coordinator.life.engine.kernel.state.tasks
        sim.coordinator.order(StopTask(task=task, reason="stopped by Ctrl-C"))
        worker(sim).exit(137, 9)

    run = Planted(stop_and_kill)
    answer = run.why("lost", worker=the_lost(run))
    assert answer.text.startswith("yes, it was ended with its task (stopped by Ctrl-C)")
    assert "signal 9" in answer.text
