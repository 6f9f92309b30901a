"""Guards `run.restore(..., from_=…)` in real workers: all of them begin with the weights of the
source, at step 0 with their own seed, and a worker that comes later takes the state of the run."""

import json
import signal
from pathlib import Path

import pytest
from safetensors.torch import save_file

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.manifest import decode_manifest
from strata.timeline.read.records import Record
from strata.timeline.read.sentences import sentence
from tests.sdk.harness import until
from tests.sdk.test_recovering import submit
from tests.sdk.test_saving import TASK, folder

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("warm_trainee.py")


def net(seed, outputs=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, outputs)
    )


def listed(state):
    return {name: each.tolist() for name, each in state.items()}


def start(hub, trainees, names, seeds, **given):
    """Start workers with seeds of their own; returns what each printed when it began."""
    workers = [
        trainees(hub.address, "begin", script=SCRIPT, worker_id=name, seed=seed, **given)
        for name, seed in zip(names, seeds, strict=True)
    ]
    return workers, [worker.says("began") for worker in workers]


def test_two_workers_begin_with_the_weights_of_a_file(hub, trainees, tmp_path):
    path = tmp_path / "other.pt"
    torch.save(net(9).state_dict(), path)
    workers, began = start(hub, trainees, "ab", (1, 2), world_size=2, from_=str(path))
    for seed, each in zip((1, 2), began, strict=True):
        assert each["state"] == listed(torch.load(path, weights_only=True))
        net(seed)
        assert each["drawn"] == torch.rand(3).tolist()
        assert (each["steps"], each["moments"], each["source"]) == (0, 0, "fresh")
    assert [worker.ends() for worker in workers] == [0, 0]
    for name in "ab":
        (event,) = hub.recorded(name, "WarmStarted")
        assert (event.body.source, event.body.taken, event.body.kept) == (str(path), 9, 0)
        told = sentence(Record(at_ns=0, node=name, incarnation=1, event=event))
        assert told == f"started with 9 tensors of {path}"


def test_workers_begin_with_the_checkpoint_of_another_task(hub, trainees, tmp_path):
    (saved,), _ = start(hub, trainees, "a", (3,), world_size=1, steps=4, checkpoint_every=4)
    assert saved.ends() == 0
    with CheckpointManager(folder(hub, tmp_path)) as manager:
        kept = manager.load()
    task = submit(hub, worker_count=2)
    workers, began = start(hub, trainees, "bc", (1, 2), task=task, from_=TASK)
    for each in began:
        assert each["state"] == listed(kept["model"])
        assert (each["steps"], each["moments"], each["source"]) == (0, 6, "fresh")
    assert [worker.ends() for worker in workers] == [0, 0]
    (fact,) = hub.recorded_facts("b", "WarmStarted")
    assert fact.objects == ["optimizer"]
    assert fact.source.endswith(f"/{TASK}/step-00000004-1")


def test_worker_that_starts_later_takes_the_state_of_the_run(hub, trainees, tmp_path):
    path = tmp_path / "other.safetensors"
    save_file(net(9).state_dict(), path)
    given = {"world_size": 2, "from_": str(path), "steps": 10**6, "step_s": 0.02}
    workers, _ = start(hub, trainees, "ab", (1, 2), **given)
    until(lambda: hub.state.tasks[TASK].committed > 5 and hub.recorded("b", "WarmStarted"))
    workers[1].kill()
    until(lambda: not hub.state.workers["b"].alive)
    _, (later,) = start(hub, trainees, "b", (2,), **given)
    assert later["source"] == "peer"
    assert later["steps"] > 5
    assert later["moments"] == 6
    assert later["state"] != listed(net(9).state_dict())
    assert len(hub.recorded("b", "WarmStarted")) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_worker_declared_lost_while_it_starts_begins_with_the_weights(
    hub, trainees, tmp_path, rank
):
    path, gate = tmp_path / "other.safetensors", tmp_path / "gate"
    save_file(net(9).state_dict(), path)
    given = {"script": SCRIPT, "world_size": 2, "from_": str(path), "gate": str(gate)}
    workers = [
        trainees(hub.address, "begin", worker_id=name, seed=seed, **given)
        for name, seed in (("a", 1), ("b", 2))
    ]
    for worker in workers:
        worker.says("waiting")
    stopped = hub.state.tasks[TASK].members[rank]
    worker = workers["ab".index(stopped)]
    worker.signal(signal.SIGSTOP)
    until(lambda: not hub.state.workers[stopped].alive)
    worker.signal(signal.SIGCONT)
    gate.touch()
    ended = [worker.says("ended")["state"] for worker in workers]
    assert ended[0] == ended[1]
    assert [worker.says("began")["state"] for worker in workers] == [
        listed(net(9).state_dict()) for _ in workers
    ]
    assert [worker.ends() for worker in workers] == [0, 0]


def test_new_head_begins_as_initialised_without_strict(hub, trainees, tmp_path):
    path = tmp_path / "other.safetensors"
    save_file(net(9).state_dict(), path)
    given = {"world_size": 2, "from_": str(path), "outputs": 5, "strict": False}
    workers, began = start(hub, trainees, "ab", (1, 1), **given)
    head = listed(net(1, outputs=5).state_dict())
    for each in began:
        for name, value in listed(net(9).state_dict()).items():
            assert each["state"][name] == (head[name] if name.startswith("2.") else value)
    (fact,) = until(lambda: hub.recorded_facts("a", "WarmStarted"))
    assert (fact.taken, fact.kept, fact.ignored) == (7, 2, 2)
    assert fact.kept_names == ["model.2.weight", "model.2.bias"]
    said = "kept 2 as initialised (model.2.weight, model.2.bias); ignored 2"
    first, other = "ab" if began[0]["rank"] == 0 else "ba"
    until(lambda: any(said in line for line in hub.all_lines(first)))
    assert [worker.ends() for worker in workers] == [0, 0]
    assert not any("started with" in line for line in hub.all_lines(other))


def damage(place, checkpoint, name):
    """Overwrite bytes of a tensor."""
    (part,) = decode_manifest((place / f"{checkpoint}.json").read_bytes(), "").parts
    (offset,) = [each.offset for each in part.tensors if each.name == name]
    with (place / checkpoint / part.file).open("r+b") as file:
        file.seek(offset)
        file.write(bytes(8))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("other model", "2 of another shape: 'model.2.weight' is [3, 8] there and [5, 8] here"),
        ("deleted", "there is no checkpoint step-00000004-1: looked in "),
        ("damaged", "do not match their checksum"),
    ],
)
def test_source_that_cannot_be_used_fails_the_worker(hub, trainees, tmp_path, source, expected):
    (saved,), _ = start(hub, trainees, "a", (3,), world_size=1, steps=4, checkpoint_every=4)
    assert saved.ends() == 0
    if source == "deleted":
        (folder(hub, tmp_path) / "step-00000004-1.json").unlink()
    elif source == "damaged":
        damage(folder(hub, tmp_path), "step-00000004-1", "model.0.weight")
    worker = trainees(
        hub.address,
        "begin",
        script=SCRIPT,
        worker_id="b",
        task=submit(hub, worker_count=1),
        seed=1,
        outputs=5 if source == "other model" else 3,
        from_=f"{TASK}/step-00000004-1",
    )
    assert worker.ends() == 1
    assert expected in "".join(worker.output)
    assert expected in json.dumps([loss.reason for loss in hub.facts("WorkerLost")])
