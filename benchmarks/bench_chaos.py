"""Training on four workers under many injected faults, compared with the same run undisturbed.

    python benchmarks/bench_chaos.py [--mishaps 50] [--seed 1]

The faults are drawn by the seed: `kill -9` of a worker, SIGSTOP of a worker, and `kill -9` of the
coordinator. Shown are: whether the run finished, the verdict of the audit, the difference of the
final weights and loss to the undisturbed run, and the effective training time, from the facts.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from common import show

SCRIPT = Path(__file__).with_name("chaos_training.py")
MAIN = [sys.executable, "-c", "from strata.cli import main; main()"]
KINDS = ("kill", "kill", "kill", "stop", "coordinator")
SETTINGS = {
    "STRATA_HEARTBEAT_INTERVAL_S": "0.5",
    "STRATA_HEARTBEAT_TIMEOUT_S": "4",
    "STRATA_CHECKPOINT_INTERVAL_S": "5",
}
TIMEOUT_S = 900.0
PERCENT_HARMED = 90.0


class Cluster:
    """A coordinator, which may be killed and started again, and an agent: each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.grpc, self.http = free_port(), free_port()
        self.environment = {**os.environ, **SETTINGS}
        self.coordinator = self.start_coordinator()
        self.agent = self.start("agent", "--coordinator", f"127.0.0.1:{self.grpc}", "--slots", "4")

    def start(self, verb: str, *options: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{verb}.log").open("ab")
        return subprocess.Popen(
            [*MAIN, verb, *options, "--data-dir", str(self.folder / verb)],
            stdout=log,
            stderr=log,
            env=self.environment,
        )

    def start_coordinator(self) -> subprocess.Popen[bytes]:
        ports = ("--grpc-port", str(self.grpc), "--http-port", str(self.http))
        process = self.start("up", *ports)
        wait_for(lambda: self.get("health") is not None, "the coordinator")
        return process

    def get(self, path: str):
        try:
            url = f"http://127.0.0.1:{self.http}/api/{path}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)
        except OSError:
            return None

    def submit(self, epochs: int, step_s: float) -> str:
        options = ["--workers", "4", "--max-restarts", "20", "--name", "chaos"]
        config = ["--config", f"epochs={epochs}", "--config", f"step_s={step_s}"]
        url = ["--url", f"http://127.0.0.1:{self.http}"]
        command = [*MAIN, "submit", str(SCRIPT), *options, *config, *url]
        return subprocess.check_output(command, text=True, env=self.environment).strip()

    def workers(self) -> list[int]:
        """The processes of the workers, found as the agent's children."""
        found = subprocess.run(
            ["pgrep", "-f", str(SCRIPT)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split() if is_child(int(pid), self.agent.pid)]

    def restart_coordinator(self) -> None:
        self.coordinator.kill()
        self.coordinator.wait()
        self.coordinator = self.start_coordinator()

    def close(self) -> None:
        for process in (self.agent, self.coordinator):
            process.terminate()
            process.wait(30)


def is_child(pid: int, parent: int) -> bool:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent
    except (OSError, ValueError):
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(happened, what: str, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what} did not come within {timeout_s:g} s")
        time.sleep(0.05)


def trained(folder: Path, epochs: int, step_s: float, mishaps: int, seed: int) -> dict[str, object]:
    """Train to the end with so many faults on the way, and return the figures."""
    cluster = Cluster(folder)
    chance = random.Random(seed)
    kinds = [chance.choice(KINDS) for _ in range(mishaps)]
    done = 0
    begun_s = time.monotonic()
    try:
        task = cluster.submit(epochs, step_s)
        known: dict[str, object] = {}
        while known.get("status") not in ("completed", "failed", "stopped"):
            if time.monotonic() - begun_s > TIMEOUT_S:
                break
            time.sleep(0.1)
            known = cluster.get(f"tasks/{task}") or known
            progress = known.get("progress") or 0.0
            if done < mishaps and progress >= PERCENT_HARMED * (done + 1) / mishaps:
                done += harm(cluster, kinds[done], chance, known)
        audit = cluster.get(f"tasks/{task}/audit")
        lines = cluster.get(f"tasks/{task}/logs?limit=1000") or []
        (weights,) = [line["message"] for line in lines if line["message"].startswith("weights ")]
        return {
            "status": known["status"],
            "steps": known["committed_steps"],
            "generations": known["generation"],
            "took_s": round(time.monotonic() - begun_s, 1),
            "mishaps": {kind: kinds[:done].count(kind) for kind in sorted(set(kinds))},
            "audit": audit["verdict"],
            "rollbacks": len(audit["voided"]),
            "samples_missing": sum(e["missing"] for e in audit["feeds"][0]["epochs"]),
            "samples_twice": sum(e["twice"] for e in audit["feeds"][0]["epochs"]),
            "effective_training_time": round(
                audit["effective"]["productive_s"] / audit["effective"]["total_s"], 3
            ),
            "weights": json.loads(weights.removeprefix("weights ")),
        }
    finally:
        cluster.close()


def harm(cluster: Cluster, kind: str, chance: random.Random, known: dict[str, object]) -> bool:
    """Inject one fault, if there is a process to inject it into; return whether it was done."""
    if kind == "coordinator":
        cluster.restart_coordinator()
        return True
    workers = cluster.workers()
    if known["status"] != "running" or len(workers) < 4:
        return False
    victim = chance.choice(sorted(workers))
    try:
        os.kill(victim, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mishaps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.02)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / each for each in ("calm", "stormy")]
        for folder in folders:
            folder.mkdir()
        calm = trained(folders[0], given.epochs, given.step_s, 0, given.seed)
        stormy = trained(folders[1], given.epochs, given.step_s, given.mishaps, given.seed)
    apart = [abs(a - b) for a, b in zip(calm["weights"], stormy["weights"], strict=True)]
    show(
        "chaos",
        {
            "undisturbed": calm,
            "disturbed": stormy,
            "largest_difference": max(apart),
            "same_within_1e-9": max(apart) < 1e-9,
        },
    )


if __name__ == "__main__":
    main()
