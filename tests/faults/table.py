"""Prints docs/FAULTS.md from what was measured: `python -m tests.faults.table > docs/FAULTS.md`.

`make faults` measures first. The measured results are in `results.json`, and what other tools did
on the same faults in `peers.json` (`{fault: {tool: text}}`), both in this folder. What was not
measured says so.
"""

import json
from pathlib import Path
from typing import Any

from tests.faults.fault_cluster import SETTINGS
from tests.faults.fault_matrix import Fault, load

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PEERS = HERE / "peers.json"
LONGEST = 260

# Faults that other tests hold wholly: what is planted, and the test.
ELSEWHERE = {
    "the kernel ends a worker for its memory": "agent/test_oom_kills.py::"
    "test_oom_kill_is_the_cause_of_a_loss_and_raises_an_alert",
    "a node of Ray is killed": "launch/test_ray.py::"
    "test_task_recovers_from_a_killed_node_when_another_joins",
    "a lost worker sends any message": "coordinator/test_liveness.py::"
    "test_messages_of_a_zombie_are_refused_and_recorded_once",
    "a lost worker continues and registers again": "coordinator/test_liveness.py::"
    "test_zombie_is_fenced_and_registers_again",
    "the coordinator is killed while workers hold leases of shards": "sdk/test_leasing.py::"
    "test_leases_survive_a_killed_coordinator",
    "the clock of a worker is wrong": "coordinator/test_liveness.py::"
    "test_wrong_clock_of_a_worker_has_no_effect",
    "an append to the log is torn at any byte": "store/test_crash.py::"
    "test_append_torn_at_many_bytes",
    "a byte of the log is flipped": "store/test_corruption.py::"
    "test_flipped_byte_anywhere_is_noticed",
    "the coordinator starts on a damaged log": "cli/test_salvage.py::"
    "test_up_refuses_a_damaged_log_and_names_the_verbs",
    "a task continues after the end of the log was lost": "cli/test_salvage.py::"
    "test_task_continues_after_the_coordinator_lost_the_end_of_the_log",
    "the disk of a worker's events is full": "sdk/test_events.py::"
    "test_events_on_a_full_disk_wait_in_memory_and_are_sent",
    "the disk of a checkpoint blocks": "sdk/test_slow_disk.py::"
    "test_stalling_disk_is_visible_in_the_write_of_its_worker",
    "S3 answers 500, 503 or 429, is cut or hangs": "sdk/test_remote_saving.py::"
    "test_transient_fault_fails_no_checkpoint",
    "S3 is gone while a task restores": "sdk/test_storage_away.py::"
    "test_training_resumes_when_an_s3_server_is_restarted",
    "the leading coordinator is killed, a standby takes over": "sdk/test_takeover.py::"
    "test_killed_leaders_are_replaced_while_the_workers_train",
    "10,000 connections at once": "coordinator/test_flood.py::"
    "test_ten_thousand_connections_at_once",
}

INTRODUCTION = """# Faults

What happens when something breaks: each fault is planted into real processes (a coordinator, an
agent and two workers that train) by `tests/faults`. After every one the same is checked: the task
completes, `strata audit` proves it, generations only grew, the newest checkpoint verifies, the
state computed from the log equals the live one, every fact that a reader had got is in the log, the
training script counted every sample exactly as often as the order says, and `strata why` names the
cause. `make chaos MINUTES=10` plants random ones into one cluster, one after the other.

"""

MEASURED = """Written by `make faults` from real runs, the newest on {date}: {cores} cores at
load {load}, Python {python}, commit {commit}. The heartbeat timeout was {timeout:g} s (default:
30 s). What other tools did, with their defaults, is measured by `benchmarks/bench_fault_peers.py`.
*Detected* is the time from the fault until a reader of the REST API had the fact that declares it,
*recovered* the time until it had the commit of a step that was trained afterwards; a task commits
once a second. A fault without a declaring fact needs none, or cannot be recorded while it lasts
(–).

"""

ELSEWHERE_HEAD = """
## Held by other tests

These faults have tests of their own, which are not repeated here.

"""


def rows(faults: dict[str, Fault], found: dict[str, Any], peers: dict[str, Any]) -> list[list[str]]:
    """One row for each fault, in the order of the matrix."""
    shown = []
    for name, fault in faults.items():
        row = found.get(name)
        others = "; ".join(f"{tool}: {text}" for tool, text in peers.get(name, {}).items())
        texts = [name, fault.does]
        if row is None:
            texts += ["not measured here"] + ["–"] * 4 + ["–"]
        else:
            texts += [span(row[each]) for each in ("lasted_s", "detected_s", "recovered_s")]
            texts += [str(row["lost_samples"]), str(row["lost_facts"]), shortened(row["why"])]
        shown.append([*texts, others or "not run"])
    return shown


def span(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def table(head: list[str], lines: list[list[str]]) -> str:
    ruled = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in ruled)


def page() -> str:
    """The whole page."""
    stored = json.loads(RESULTS.read_text("utf-8"))
    peers = json.loads(PEERS.read_text("utf-8")) if PEERS.exists() else {}
    machine = stored["machine"]
    measured = MEASURED.format(
        date=stored["date"],
        cores=machine["cores"],
        load=round(machine["load_average"]),
        python=machine["python"],
        commit=machine["commit"],
        timeout=SETTINGS["heartbeat_timeout_s"],
    )
    head = ["fault", "what is planted", "lasted", "detected", "recovered"]
    head += ["lost samples", "lost facts", "what `strata why` says", "other tools"]
    found = table(head, rows(load(), stored["faults"], peers))
    others = [[name, f"`tests/{test}`"] for name, test in ELSEWHERE.items()]
    elsewhere = table(["fault", "test"], others)
    return INTRODUCTION + measured + found + ELSEWHERE_HEAD + elsewhere


if __name__ == "__main__":
    print(page(), end="")
