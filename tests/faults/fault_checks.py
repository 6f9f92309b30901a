"""What must hold after every fault, checked from outside: by what a user runs and by what the
training script counted itself.

`check(trial, why)` raises an `AssertionError` that names the broken promise; it returns what
`strata why` said and how many samples and facts were lost (0 of each, or it would have raised).
"""

import json
import re
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from strata.core.cluster import apply
from strata.core.events import Event
from strata.core.record import snapshot_versions
from strata.core.state import Cluster as State
from strata.store.event_store import EventReader
from strata.store.snapshots import newest_state
from strata.timeline.read.records import ref_of_cause
from tests.agent.harness import environment
from tests.coordinator.process import STRATA
from tests.faults.exact_trainee import GLOBAL_BATCH, SAMPLES
from tests.faults.fault_cluster import WAIT_S, Trial


@dataclass(frozen=True)
class Why:
    """A question to `strata why`, and a pattern that its answer must contain: the planted cause."""

    asked: tuple[str, ...]
    names: str


@dataclass(frozen=True)
class Checked:
    """What was found after a fault."""

    steps: int
    lost_samples: int
    lost_facts: int
    why: str


def check(trial: Trial, why: Why) -> Checked:
    """Check every promise; the task has ended."""
    asked = [
        ("checkpoints", "verify", newest_checkpoint(trial), "--task", trial.task),
        ("why", *why.asked, "--json"),
    ]
    audit = proven_audit(trial)
    _, answer = (json.loads(each or "{}") for each in answers(trial, asked))
    steps, lost = count_samples(trial)
    (feed,) = audit["feeds"]
    once = sum(each["once"] for each in feed["epochs"])
    assert (feed["steps"], once) == (steps, steps * GLOBAL_BATCH), audit["summary"]
    said = [answer["answer"], *answer["findings"], *(each["text"] for each in answer["chain"])]
    named = next((line for line in said if re.search(why.names, line)), None)
    assert named, f"`strata why {' '.join(why.asked)}` does not name {why.names!r}: {said}"
    require_growing_generations(trial)
    with trial.cluster.reader() as reader:
        lost_facts = count_lost_facts(trial, reader)
        require_equal_replay(trial, reader)
    return Checked(steps, lost, lost_facts, named)


def proven_audit(trial: Trial) -> dict[str, Any]:
    """The audit, which exits with 0 only if it is proven; an agent that was away may still send
    what its killed worker had recorded."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            [output] = answers(trial, [("audit", trial.task, "--json")])
        except AssertionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)
        else:
            return dict(json.loads(output))


def answers(trial: Trial, asked: list[tuple[str, ...]]) -> list[str]:
    """Run verbs beside each other; each must succeed. Returns what they printed as JSON."""
    url = trial.cluster.coordinator.http_url
    started = [
        subprocess.Popen(
            [*STRATA, *verb, "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**trial.cluster.variables),
        )
        for verb in asked
    ]
    ended = [process.communicate(timeout=WAIT_S) for process in started]
    for verb, process, (output, error) in zip(asked, started, ended, strict=True):
        assert process.returncode == 0, f"strata {' '.join(verb)}: {error or output}"
    return [
        output if "--json" in verb else "" for verb, (output, _) in zip(asked, ended, strict=True)
    ]


def newest_checkpoint(trial: Trial) -> str:
    """The id of the task's newest committed checkpoint."""
    return str(trial.watcher.of("CheckpointCommitted", task=trial.task)[-1]["fields"]["checkpoint"])


def count_samples(trial: Trial) -> tuple[int, int]:
    """The applied steps and the lost samples, by the workers' own ledgers.

    An epoch visits each sample once, so after n steps each was applied as often as the others, or
    once more in the epoch that is not over.
    """
    lines = list(trial.ledger())
    steps = max(line["step"] for line in lines)
    finals = [line["applied"] for line in lines if line["step"] == steps]
    assert all(each == finals[0] for each in finals), "the workers ended with different models"
    applied = [round(each) for each in finals[0]]
    assert sum(applied) == steps * GLOBAL_BATCH, f"{steps} steps, {sum(applied)} samples"
    epochs = steps * GLOBAL_BATCH // SAMPLES
    lost = sum(max(0, epochs - each) for each in applied)
    twice = sum(max(0, each - epochs - 1) for each in applied)
    assert (lost, twice) == (0, 0), f"{lost} samples lost, {twice} applied twice: {applied}"
    return steps, lost


def require_growing_generations(trial: Trial) -> None:
    """Generations of the task only grew, in the facts and for each process."""
    changes = trial.watcher.of("GenerationChanged", task=trial.task)
    numbers = [each["fields"]["generation"] for each in changes]
    assert numbers == sorted(set(numbers)), numbers
    for file in trial.folder.glob("ledger-*.jsonl"):
        found = [line["generation"] for line in trial.ledger(file.name)]
        assert found == sorted(found), f"{file.name}: {found}"


def count_lost_facts(trial: Trial, reader: EventReader) -> int:
    """The facts that a reader got over REST and that the log does not have; raises if any."""
    seen = list(trial.watcher.facts)
    stored = {event.seq: event for event in reader.read(reader.first, len(seen))}
    assert [each["position"] for each in seen] == list(range(len(seen)))
    lost = [each for each in seen if not same(each, stored.get(each["position"]))]
    assert not lost, f"{len(lost)} facts of {len(seen)} are not in the log: {lost[0]}"
    return len(lost)


def same(seen: dict[str, Any], stored: Event | None) -> bool:
    """Whether a fact in the log is the one that a reader got."""
    if stored is None or seen["kind"] != stored.kind:
        return False
    body = msgspec.convert(seen["fields"], type(stored.body))
    return (seen["cause"], body) == ([ref_of_cause(each) for each in stored.cause], stored.body)


def require_equal_replay(trial: Trial, reader: EventReader) -> None:
    """The state by all facts is that of the live coordinator: by its snapshots and by REST."""
    end = reader.position
    replayed, resumed = State(), newest_state(reader, end)
    for event in reader.read(0, end):
        apply(replayed, event)
    for event in reader.read(resumed.position, end):
        apply(resumed, event)
    assert snapshot_versions.encode(replayed) == snapshot_versions.encode(resumed)
    task, shown = replayed.tasks[trial.task], trial.api.task(trial.task)
    live = (shown["status"], shown["generation"], shown["committed_steps"])
    assert live == (task.state, task.generation, task.committed), shown
