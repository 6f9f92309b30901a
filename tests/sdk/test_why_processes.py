"""The answers of `why` about worker processes: each test injects one cause."""

import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from strata.coordinator.rest.views.shard_views import ShardList
from strata.errors import NotFound
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.past_states import state_at
from tests.coordinator.conftest import coordinator
from tests.sdk.conftest import HEARTBEAT_TIMEOUT_S, Hub
from tests.sdk.harness import CoordinatorProcess, until

UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
STOPPED_NS = 1_300_000_000
FAULTY = Path(__file__).with_name("faulty_trainee.py")


@pytest.fixture
def ask(hub, tmp_path):
    """Ask a question about the current log."""

    def asked(question, **params):
        with open_timeline(tmp_path / "data") as timeline:
            given = {name: str(value) for name, value in params.items()}
            return TimelineQueries(timeline).why(question, params=given)

    return asked


@pytest.fixture
def recorded(hub, tmp_path):
    """Wait until a worker's event is stored; returns the last one."""

    def found(kind, node, **fields):
        with open_timeline(tmp_path / "data") as timeline:
            records = [
                each
                for each in timeline.records(kinds={kind}, node=node)
                if all(each.get(name) == value for name, value in fields.items())
            ]
            return records[-1] if records else None

    return lambda kind, node, **fields: until(lambda: found(kind, node, **fields), what=kind)


@pytest.fixture
def heartbeats(hub, tmp_path):
    """The number of answered and stored heartbeats of a worker."""

    def count(node):
        with open_timeline(tmp_path / "data") as timeline:
            return len(list(timeline.records(kinds={"ClockSampled"}, node=node)))

    return count


def events(hub, kind):
    return [event for event in hub.store.read() if event.kind == kind]


def stuck_barrier(hub):
    """A barrier that has been open for some time."""
    ended = {each.body.round for each in events(hub, "BarrierReleased")}
    for opened in events(hub, "BarrierOpened"):
        age_ns = time.monotonic_ns() - opened.mono_ns
        if opened.body.round not in ended and age_ns > STOPPED_NS:
            return opened.body
    return None


class TestBarrier:
    def test_paused_worker_is_distinguished_from_a_slow_one(
        self, hub, trainees, ask, recorded, heartbeats
    ):
        given = {"world_size": 2, "barrier_every": 1}
        crowd = {n: trainees(hub.address, "train", worker_id=n, **given) for n in ("a", "b")}
        until(lambda: heartbeats("b") > 4)
        crowd["b"].signal(signal.SIGSTOP)
        stuck = until(lambda: stuck_barrier(hub))
        crowd["b"].signal(signal.SIGCONT)
        recorded("RequestCompleted", "b", barrier=stuck.barrier)
        recorded("RequestCompleted", "a", barrier=stuck.barrier)
        answer = ask("barrier", barrier=stuck.barrier)
        assert answer.verdict == "yes"
        assert answer.answer.startswith("yes: b arrived last")
        assert "not even a heartbeat" in answer.answer
        assert "stopped or starved" in answer.answer
        assert answer.findings[0].startswith("a arrived after 0 µs and was released after ")
        assert answer.findings[1].startswith("b arrived after ")

    def test_busy_worker_is_not_called_stopped(self, hub, trainees, ask, recorded):
        given = {"world_size": 2, "barrier_every": 1, "steps": 2}
        quick = trainees(hub.address, "train", worker_id="a", **given)
        trainees(hub.address, "train", worker_id="b", step_s=1.2, **given)
        assert quick.ends() == 0
        recorded("RequestCompleted", "b", barrier="step-1")
        answer = ask("barrier", barrier="step-1")
        assert answer.verdict == "yes"
        assert answer.answer.startswith("yes: b arrived last")
        busy = r"meanwhile it was in step 0, which took \d+\.\d s \(\d+\.\d s of it compute\)"
        assert re.search(busy, answer.answer)

    def test_no_worker_is_told_the_end_before_the_last_arrived(self, hub, trainees, ask, recorded):
        """Arrivals are on the coordinator's clock, answers on the workers'."""
        given = {"world_size": 2, "barrier_every": 1, "steps": 20}
        crowd = [trainees(hub.address, "train", worker_id=n, **given) for n in ("a", "b")]
        assert [each.ends() for each in crowd] == [0, 0]
        for name in ("a", "b"):
            recorded("RunEnded", name)
        for opened in events(hub, "BarrierOpened"):
            found = ask("barrier", barrier=opened.body.barrier, round=opened.body.round).findings
            spans = [re.findall(r"after ([\d.]+) (µs|ms|s)", line) for line in found]
            assert all(len(each) == 2 for each in spans), found
            measured = [[float(n) * UNITS[unit] for n, unit in each] for each in spans]
            last_arrival = max(arrived for arrived, _ in measured)
            assert all(told >= last_arrival for _, told in measured), found

    def test_failed_barrier_names_the_missing_worker_and_what_it_did(self, trainees, tmp_path):
        with coordinator(tmp_path / "data", barrier_timeout_s=1.5) as started:
            hub, gate = Hub(started), tmp_path / "gate"
            waits = trainees(hub.address, "wait_alone", worker_id="a", world_size=2)
            trainees(hub.address, "gate", worker_id="b", world_size=2, gate=str(gate))
            assert waits.ends() != 0
            with open_timeline(tmp_path / "data") as timeline:
                answer = TimelineQueries(timeline).why("barrier", params={"barrier": "never"})
        assert answer.verdict == "yes"
        # The verdict waits for the stacks of the workers, for at most `hang_report_s`.
        assert re.match(r"yes: it failed after \d\.\d s, without b, which ", answer.answer)
        assert "b did not arrive" in answer.findings


@pytest.fixture
def slow_pair(hub, trainees, recorded, tmp_path):
    """Start two workers; `b` becomes slow in one part of its steps. Returns when."""

    def plant(cause, task=""):
        gate = tmp_path / f"gate-{cause}"
        given = {"world_size": 2, "cause": cause, "gate": str(gate), "victim": "b"}
        given |= {"script": FAULTY, "task_id": task} if task else {"script": FAULTY}
        crowd = [trainees(hub.address, "steps", worker_id=n, **given) for n in ("a", "b")]
        for trainee in crowd:
            trainee.says("step", count=400)
        began_ms = time.time() * 1000
        gate.touch()
        step = crowd[1].says("slow step", count=25)["step"]
        for node in ("a", "b"):
            recorded("StepFinished", node, step=step - 1)
        return began_ms

    return plant


class TestLost:
    def test_stopped_process_was_alive_and_a_longer_timeout_would_have_kept_it(
        self, hub, trainees, ask, heartbeats
    ):
        worker = trainees(hub.address, "train", worker_id="a")
        until(lambda: heartbeats("a") > 4)
        worker.signal(signal.SIGSTOP)
        until(lambda: hub.facts("WorkerLost"))
        worker.signal(signal.SIGCONT)
        until(lambda: hub.facts("WorkerFenced"))
        answer = ask("lost", worker="a")
        assert answer.verdict == "no"
        assert "a paused process" in answer.answer
        assert ask("timeout", worker="a", timeout_s=60).verdict == "no"
        shorter = ask("timeout", worker="a", timeout_s=2)
        assert shorter.verdict == "yes"
        assert f"heartbeat_timeout_s was {HEARTBEAT_TIMEOUT_S:g} s" in shorter.answer

    def test_timeouts_of_the_run_are_used_and_not_the_defaults(self, trainees, tmp_path):
        """`connection_grace_s` is not part of the loss; it is read from `CoordinatorStarted`."""
        settings = {"heartbeat_interval_s": 0.25, "connection_grace_s": 0.3}
        with coordinator(tmp_path / "data", **settings) as started:
            hub = Hub(started)
            worker = trainees(hub.address, "train", worker_id="a")
            worker.says("joined")
            until(lambda: hub.state.tasks["default-1"].committed > 5)
            worker.kill()
            until(lambda: hub.facts("WorkerLost"))
            with open_timeline(tmp_path / "data") as timeline:
                queries = TimelineQueries(timeline)
                asked = {"worker": "a", "timeout_s": "0.3"}
                shorter = queries.why("timeout", params=asked)
                longer = queries.why("timeout", params=asked | {"timeout_s": "1"})
        assert shorter.answer.startswith("yes: connection_grace_s was 0.3 s")
        assert longer.verdict == "unknown", "nobody saw the process end"

    def test_script_error_is_part_of_the_answer(self, hub, trainees, ask):
        assert trainees(hub.address, "fail", worker_id="a").ends() == 1
        until(lambda: hub.facts("WorkerLost"))
        answer = ask("lost", worker="a")
        assert answer.verdict == "yes"
        assert "its script failed: RuntimeError: the loss is not a number" in answer.answer


class TestRequest:
    def test_answered_request_is_found(self, hub, trainees, ask, recorded):
        worker = trainees(hub.address, "meet", worker_id="a", rounds=1)
        assert worker.ends() == 0
        asked = recorded("RequestSubmitted", "a", barrier="b")
        assert ask("request", worker="a", request=asked.get("request")).verdict == "yes"

    def test_request_of_a_lost_worker_is_explained(self, hub, trainees, ask, recorded):
        given = {"world_size": 2, "worker_id": "a"}
        waits = trainees(hub.address, "wait_alone", **given)
        trainees(hub.address, "train", world_size=2, worker_id="b")
        asked = recorded("RequestSubmitted", "a", barrier="never")
        waits.kill()
        until(lambda: hub.facts("WorkerLost"))
        answer = ask("request", worker="a", request=asked.get("request"))
        assert answer.verdict == "no"
        assert "a was declared lost" in answer.answer


class TestCheckpoint:
    def test_full_disk_is_named_with_the_rank(self, hub, trainees, ask):
        given = {"steps": 10, "checkpoint_every": 10, "size": 100_000}
        worker = trainees(
            hub.address, "keep_in_little_room", worker_id="a", largest_bytes=1_000_000, **given
        )
        assert worker.ends() == 0
        failed = hub.facts("CheckpointFailed")[0]
        answer = ask("checkpoint", checkpoint=failed.checkpoint)
        assert answer.verdict == "no"
        assert answer.answer.startswith("no: rank 0 (a) could not write its part: ")
        assert "file size limit" in answer.answer

    def test_worker_killed_on_a_slow_disk_is_named(self, hub, trainees, ask, recorded, tmp_path):
        given = {"world_size": 2, "checkpoint_every": 10, "steps": 10**6}
        gate = str(tmp_path / "gate")
        trainees(hub.address, "keep", worker_id="a", **given)
        slow = trainees(hub.address, "keep_on_a_slow_disk", worker_id="b", gate=gate, **given)
        slow.says("writing")
        begun = recorded("CheckpointWriteStarted", "b")
        rank = until(lambda: hub.facts("CheckpointStarted")) and hub.state.workers["b"].rank
        open_one = ask("checkpoint", checkpoint=begun.text("checkpoint"))
        assert open_one.verdict == "open"
        assert f"rank {rank} (b) started to write its part and did not finish" in open_one.answer
        slow.kill()
        until(lambda: hub.facts("CheckpointFailed"))
        answer = ask("checkpoint", checkpoint=begun.text("checkpoint"))
        assert answer.verdict == "no"
        assert f"rank {rank} (b) was lost before its part was stored" in answer.answer
        unfinished = ask("unfinished", worker="b")
        assert unfinished.verdict == "yes"
        assert f"writing a checkpoint {begun.text('checkpoint')}" in unfinished.answer

    def test_the_lost_worker_is_named_and_not_one_that_was_still_writing(
        self, hub, trainees, ask, recorded, tmp_path
    ):
        given = {"world_size": 2, "checkpoint_every": 10, "steps": 10**6}
        gate = tmp_path / "gate"
        crowd = {
            name: trainees(
                hub.address, "keep_on_a_slow_disk", worker_id=name, gate=str(gate), **given
            )
            for name in "ab"
        }
        for worker in crowd.values():
            worker.says("writing")
        checkpoint = recorded("CheckpointWriteStarted", "a").text("checkpoint")
        recorded("CheckpointWriteStarted", "b")
        ranks = {name: hub.state.workers[name].rank for name in "ab"}
        crowd["b"].kill()
        until(lambda: hub.facts("CheckpointFailed"))
        gate.touch()
        recorded("CheckpointWriteCompleted", "a", checkpoint=checkpoint)
        answer = ask("checkpoint", checkpoint=checkpoint)
        assert answer.answer.startswith(f"no: rank {ranks['b']} (b) was lost before")
        assert len(answer.findings) == 2
        assert "did not hear of it" not in " ".join(answer.findings)


class TestMembership:
    def test_lanes_of_a_killed_worker_move_and_its_last_steps_are_unproven(
        self, hub, trainees, ask, tmp_path
    ):
        crowd = {n: trainees(hub.address, "lanes", worker_id=n, script=FAULTY) for n in "ab"}
        until(lambda: hub.facts("AssignmentChanged"))
        until(lambda: len(hub.state.tasks["default-1"].members) == 2)
        crowd["b"].says("step", count=20)
        held = hub.state.tasks["default-1"].feeds["numbers"].holdings["b"][0]
        until(lambda: self._stopped_with_unsent_events(hub, crowd["b"], tmp_path))
        crowd["b"].kill()
        until(lambda: hub.facts("WorkerLost"))
        until(lambda: held in hub.state.tasks["default-1"].feeds["numbers"].holdings["a"])
        owners = self._owners_before_the_loss(hub, tmp_path)
        moved, kept = (max(s for s, owner in owners.items() if owner == name) for name in "ba")
        answer = ask("moved", shard=moved)
        assert answer.verdict == "yes"
        assert f"shard {moved} of numbers" in answer.answer
        assert "from b to a" in answer.answer
        assert "was lost" not in ask("moved", shard=kept).answer
        with pytest.raises(NotFound, match="has no shard"):
            ask("moved", shard=10**9)
        assert "worker b was lost" in answer.answer
        assert "the minimum" in answer.answer
        trust = ask("trust")
        assert trust.verdict == "no"
        assert "of default-1 cannot be proven: the record of b for step" in trust.answer

    def test_records_that_are_on_their_way_do_not_make_a_log_untrustworthy(
        self, hub, trainees, ask, tmp_path
    ):
        crowd = {n: trainees(hub.address, "lanes", worker_id=n, script=FAULTY) for n in "ab"}
        until(lambda: hub.facts("AssignmentChanged"))
        until(lambda: len(hub.state.tasks["default-1"].members) == 2)
        crowd["b"].kill()
        until(lambda: hub.facts("WorkerLost"))
        crowd["a"].says("step", count=20)
        said = "a has not sent its records of step"

        def asked_before_they_arrive():
            """What had left the worker before it was stopped may still arrive: then once more."""
            if not self._stopped_with_unsent_events(hub, crowd["a"], tmp_path, "a"):
                return None
            answer = ask("trust")
            if any(said in each for each in answer.findings):
                return answer
            crowd["a"].signal(signal.SIGCONT)
            return None

        assert "the record of a for" not in until(asked_before_they_arrive).answer

    @staticmethod
    def _owners_before_the_loss(hub, folder):
        """The owners of the shards, as the API lists them for the moment of the loss."""
        (loss,) = events(hub, "WorkerLost")
        with open_timeline(folder / "data") as timeline:
            state = state_at(timeline, loss.seq).state
        shards = ShardList(state.datasets["numbers"], state.tasks["default-1"]).page(0, 10**6)
        return {each.shard_id: each.worker_id for each in shards}

    @staticmethod
    def _stopped_with_unsent_events(hub, worker, folder, name="b"):
        """Pause a worker that has committed steps which it has not recorded."""
        worker.signal(signal.SIGSTOP)
        with open_timeline(folder / "data") as timeline:
            done = list(timeline.records(kinds={"TrainingFinished"}, node=name))
        if done and hub.state.tasks["default-1"].committed > done[-1].get("step") + 1:
            return True
        worker.signal(signal.SIGCONT)
        return False


class TestCoordinatorRestart:
    def test_dead_worker_is_no_clock_jump(self, trainees, tmp_path):
        strata_up = CoordinatorProcess(
            tmp_path, heartbeat_interval_s=0.25, heartbeat_timeout_s=8, reattach_grace_s=1.5
        )
        try:
            crowd = {n: trainees(strata_up.address, "train", worker_id=n) for n in "ab"}
            for trainee in crowd.values():
                trainee.says("joined")
            self._hold_up(strata_up, tmp_path)
            with open_timeline(tmp_path / "data") as timeline:
                paused = TimelineQueries(timeline).why("outage")
            strata_up.kill()
            crowd["b"].kill()
            strata_up.start()
            until(lambda: self._facts(tmp_path, "WorkerLost"))
            with open_timeline(tmp_path / "data") as timeline:
                queries = TimelineQueries(timeline)
                lost = queries.why("lost", params={"worker": "b"})
                trust = queries.why("trust")
                timeout = queries.why("timeout", params={"worker": "b", "timeout_s": "1"})
                drop = queries.why("changed", params={"task": "default-1"})
            outage = until(lambda: self._outage(tmp_path, "a"), what="a's record of it")
        finally:
            strata_up.close()
        assert paused.answer.startswith("yes: it answered no heartbeat for 2.")
        assert "was not restarted: its process was stopped or starved" in paused.answer
        assert outage.answer.startswith("yes: its process had ended and was started again")
        assert "it did not reconnect after the coordinator's restart" in lost.answer
        assert lost.verdict in ("open", "unknown"), "nobody saw its process end"
        assert not [each for each in trust.findings if "jumped" in each]
        assert timeout.answer.startswith("yes: reattach_grace_s was 1.5 s")
        assert drop.verdict == "yes"

    @staticmethod
    def _outage(folder, worker):
        """The answer about the outage when it knows this worker's record of it."""
        with open_timeline(folder / "data") as timeline:
            answer = TimelineQueries(timeline).why("outage")
        return answer if f"{worker} lost the connection" in answer.answer else None

    @staticmethod
    def _facts(folder, kind, node=None):
        with open_timeline(folder / "data") as timeline:
            return list(timeline.records(kinds={kind}, node=node))

    def _hold_up(self, strata_up, folder):
        """Pause the coordinator until the answer to a heartbeat has taken more than 2 s."""
        until(lambda: len(self._facts(folder, "ClockSampled", "a")) > 4)
        strata_up.process.send_signal(signal.SIGSTOP)
        time.sleep(2.6)  # the fault itself: nothing can be heard of a stopped process
        strata_up.process.send_signal(signal.SIGCONT)
        until(
            lambda: [
                each
                for each in self._facts(folder, "ClockSampled", "a")
                if each.get("round_trip_ns") > 2_100_000_000
            ],
            what="a heartbeat that was held up",
        )


class TestSlow:
    def test_workers_of_another_task_are_not_peers(self, hub, trainees, ask, recorded):
        tasks = [self._submit(hub, name) for name in ("quick", "slow")]
        given = {"task": tasks[0], "steps": 300, "step_s": 0.002}
        quick = trainees(hub.address, "train", worker_id="q", **given)
        given = {"task": tasks[1], "steps": 20, "step_s": 0.1}
        slow = trainees(hub.address, "train", worker_id="s", **given)
        assert (quick.ends(), slow.ends()) == (0, 0)
        recorded("StepFinished", "s", step=19)
        answer = ask("slow", worker="s")
        assert answer.verdict == "no"
        assert "no other worker of its task finished steps then" in answer.answer

    @staticmethod
    def _submit(hub, name):
        """Submit a task whose workers the test starts."""
        body = {"name": name, "worker_count": 1}
        answer = httpx.post(f"{hub.running.http_url}/api/tasks", json=body, trust_env=False)
        return answer.raise_for_status().json()["task_id"]

    @pytest.mark.parametrize("cause", ["data", "compute"])
    def test_slow_worker_and_the_part_are_named(self, slow_pair, ask, cause):
        began_ms = slow_pair(cause)
        victim, other = ask("slow", worker="b"), ask("slow", worker="a")
        assert victim.verdict == "yes"
        assert victim.answer.startswith(f"yes, in {cause} (")
        assert other.verdict == "no"
        assert other.findings[0].startswith("it waits for b, which takes")
        drop = ask("throughput", time_ms=began_ms)
        assert drop.verdict == "yes"
        assert f"more in {cause}" in drop.answer
        assert "a step of b takes" in drop.answer
        found = ask("throughput")
        assert found.verdict == "yes"
        assert "a step of b takes" in found.answer

    def test_slow_link_is_distinguished_from_a_slow_worker(self, slow_pair, ask):
        began_ms = slow_pair("communication")
        victim = ask("slow", worker="b")
        assert victim.verdict == "yes"
        assert victim.answer.startswith("yes, in communication")
        drop = ask("throughput", time_ms=began_ms)
        assert drop.verdict == "yes"
        assert "the exchange between the workers takes" in drop.answer

    def test_task_that_becomes_slow_needs_attention(self, hub, trainees, tmp_path):
        gate = tmp_path / "gate"
        given = {"cause": "compute", "gate": str(gate), "victim": "a", "slow_s": 1.5}
        trainees(hub.address, "steps", worker_id="a", script=FAULTY, **given)
        until(lambda: len(hub.facts("StepsCommitted")) > 12)
        assert self._noticed(hub) == []
        gate.touch()
        (notice,) = until(lambda: self._noticed(hub))
        assert notice["subject"] == "task:default-1"
        assert "steps/s instead of the usual" in notice["text"]
        assert notice["hint"].startswith("strata why alert alert=")

    @staticmethod
    def _noticed(hub):
        answer = httpx.get(f"{hub.running.http_url}/api/dashboard", trust_env=False)
        return [each for each in answer.json()["attention"] if "steps/s" in each["text"]]
