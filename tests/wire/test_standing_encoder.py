"""Encoding of standings from shared and own bytes: equal to the core's standing, and never outdated
after a change."""

import pytest

from strata.coordinator.sessions.standing_messages import PeerTokens, StandingMessages, secret_in
from strata.core.barriers.agreements import LeaveLoop
from strata.core.datasets.dataset_rules import AttachDataset, RegisterDataset
from strata.core.state import DatasetSpec
from strata.core.task_state import Entry
from strata.core.tasks.standing import standing, task_standing
from strata.wire.grpc.grpc_call import PREFIX_BYTES
from strata.wire.messages.standing_encoder import StandingEncoder, varint
from strata.wire.v1 import coordinator_pb2 as pb
from tests.core.world import World


def training(lanes=6, dataset="words", **spec):
    world = World()
    task = world.submit(3, policy="continue", **spec)
    world.join(task, "a", "b", "c")
    spec = DatasetSpec(path="/d", total_samples=1000, shard_size=10)
    world.do(RegisterDataset(dataset=dataset, spec=spec))
    attach = AttachDataset(
        task=task.id, dataset=dataset, unit="lane", global_batch=12 * lanes, lanes=lanes
    )
    world.do(attach)
    world.sync(task)
    world.train(task, 10)
    return world, task


def peer_recovery(world, task):
    world.peers["c"].lost()
    world.join(task, "d")
    for name in "ab":
        world.peers[name].enter(address=f"{name}:1")
    world.peers["d"].enter()
    assert (task.recovery.source, task_standing(task).fetching) == ("peer", 1)


def checkpoint_recovery(world, task):
    world.save(task, 10)
    for peer in world.members(task):
        peer.model = Entry(0, 0, -1)
    world.peers["c"].lost()
    world.sync(task)
    assert task.recovery.source == "checkpoint"


def left_loop(world, task):
    world.do(LeaveLoop(**world.peers["a"].me, loop="words", step=10))


def finished(world, task):
    world.peers["a"].leave("done", steps=10)


CASES = [lambda world, task: None, peer_recovery, checkpoint_recovery, left_loop, finished]


def told(standing, stored_seq, token):
    """The expected message of a standing, field by field."""
    message = pb.Standing(
        worker_id=standing.worker,
        incarnation=standing.incarnation,
        task_id=standing.task,
        task_state=standing.task_state,
        generation=standing.generation,
        rank=standing.rank,
        world_size=standing.world_size,
        phase=standing.phase,
        attempt=standing.attempt,
        committed=standing.committed,
        checkpoint_requests=standing.save_request,
        lanes={dataset: pb.Lanes(lanes=lanes) for dataset, lanes in standing.lanes.items()},
        stored_seq=stored_seq,
        save_at=standing.save_at,
        peer_token=token,
        leader=standing.leader,
        agreed=standing.agreed,
        finished_step=standing.finished_step,
        released=standing.released,
        planned_changes=standing.planned_changes,
    )
    recovery, left = standing.recovery, standing.loop_exit
    if recovery is not None:
        message.recovery.CopyFrom(
            pb.Recovery(
                source=recovery.source,
                step=recovery.step,
                worker_id=recovery.worker,
                checkpoint_id=recovery.checkpoint,
                model_generation=recovery.model_generation,
                model_attempt=recovery.model_attempt,
                peers=[pb.Peer(worker_id=w, address=a) for w, a in standing.peers.items()],
                fetching=standing.fetching,
                copies=standing.copies,
            )
        )
    if left is not None:
        message.loop_exit.CopyFrom(
            pb.LeaveLoop(loop=left.loop, step=left.step, worker_id=left.worker)
        )
    return pb.CoordinatorMessage(standing=message)


@pytest.mark.parametrize("change", CASES)
def test_encoded_standing_matches_the_core(change):
    world, task = training()
    change(world, task)
    encoder = StandingEncoder(task, task_standing(task), "secret")
    for seq, worker in enumerate(world.state.workers.values(), start=-1):
        wanted = told(standing(world.state, worker.id), seq, "secret")
        assert pb.CoordinatorMessage.FromString(encoder.message(worker, seq)) == wanted


@pytest.mark.parametrize("lanes", [1, 40, 5_000])
def test_standing_of_any_length_is_decoded(lanes):
    world, task = training(lanes, dataset="d" * 100)
    encoder = StandingEncoder(task, task_standing(task), "secret")
    for worker in world.state.workers.values():
        message = pb.CoordinatorMessage.FromString(encoder.message(worker, -1))
        assert list(message.standing.lanes["d" * 100].lanes) == list(
            task.feeds["d" * 100].holdings.get(worker.id, [])
        )


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (16_384, b"\x80\x80\x01"),
    ],
)
def test_varint_follows_the_protobuf_encoding(number, encoded):
    assert varint(number) == encoded


def received(messages, world, worker):
    framed = messages.framed(world.state, worker, -1)
    return pb.CoordinatorMessage.FromString(framed[PREFIX_BYTES:]).standing


def test_standing_is_encoded_again_after_a_change(tmp_path):
    messages = StandingMessages(PeerTokens(secret_in(tmp_path / "secret")))
    world, _ = training()
    before = received(messages, world, "a")
    world.peers["c"].lost()
    after = received(messages, world, "a")
    assert (before.generation, after.generation) == (1, 2)
    assert (before.world_size, after.world_size) == (3, 2)
    assert before.peer_token != after.peer_token


def test_standing_is_encoded_again_after_reloading_the_state(tmp_path):
    """A turn that could not be stored is decided again, maybe differently at the same position."""
    messages = StandingMessages(PeerTokens(secret_in(tmp_path / "secret")))
    world, task = training()
    reloaded = world.replay()
    world.train(task, 20)
    assert received(messages, world, "a").committed == 20
    position = world.state.position
    world.state = reloaded
    reloaded.tasks[task.id].committed = 15
    reloaded.position = position
    assert received(messages, world, "a").committed == 15
