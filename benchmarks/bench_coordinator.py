"""Load on the coordinator as a server: `strata up` in a process of its own, loaded by one light
client process. Prints JSON; CPU is that of the coordinator unless it says otherwise.

    python benchmarks/bench_coordinator.py [barrier] [beats] [fleet] [steps] [--torchft PYTHON]

- barrier: from the last arrival to the last release, for several sizes, through sessions on a
  connection each. `at_once`: all workers arrive in one burst, so other arrivals are still in flight
  when the last one is sent. `straggler`: all other workers are already waiting. With `--torchft`, a
  Python that has torchft installed, its lighthouse forms a quorum of the same size, alternating
  with the rounds, for the same client. A release is sent before it is on disk; `sync_ms` is one
  write and fdatasync on the same disk, alternating with the rounds.
- beats: heartbeats per second and CPU per heartbeat; the cost of 1,000 workers with one every 5 s.
- fleet: memory with 10,000 workers, each registered and with an open session.
- steps: 10,000 workers that train steps of 100 ms, send a heartbeat every 5 s and the events of
  these steps every 2 s, as the SDK does. `lag_s` is how long the coordinator needed to catch up.
"""

import argparse
import resource
import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common import Sync, median, show, spread, timed
from fleet import Fleet, Replicas
from processes import Server, coordinator, lighthouse

from strata.sdk.session.heartbeat_thread import SEND_INTERVAL_S

SIZES = (8, 64, 256, 1_000)
GOAL_P99_MS = 50.0
WORKERS = 1_000
IDLE_S = 15.0
FLEET = 10_000
SPARE_FILES = 200
STEP_S = 0.1
STEPS_S = 20.0


class Usage:
    """Processor time of a server and of this process, over a block."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.server_s = self.client_s = self.wall_s = 0.0

    @contextmanager
    def measured(self):
        began = time.perf_counter()
        server, client = self._server.cpu_s(), time.process_time()
        yield
        self.server_s += self._server.cpu_s() - server
        self.client_s += time.process_time() - client
        self.wall_s += time.perf_counter() - began


def bench_barrier(size: int, rounds: int, torchft: str, folder: Path) -> dict[str, object]:
    """Measure Strata and its peer in turns, with both kinds of arrival."""
    with ExitStack() as running:
        ours = running.enter_context(coordinator(folder / f"barrier-{size}"))
        sides: dict[str, tuple[Fleet | Replicas, Usage]] = {
            "strata": (Fleet(ours.port, size), Usage(ours))
        }
        if torchft:
            theirs = running.enter_context(lighthouse(torchft, size, folder))
            sides["torchft"] = (Replicas(theirs.port, size), Usage(theirs))
        took: dict[str, dict[str, list[float]]] = {"at_once": {}, "straggler": {}}
        sync, syncs = Sync(folder), []
        for turn in range(rounds + 1):
            syncs.append(timed(sync))
            for way, times in took.items():
                for side, (crowd, usage) in sides.items():
                    crowd.stay_alive()
                    with usage.measured():
                        seconds = crowd.meet(way == "at_once")
                    if turn:  # the first warms up
                        times.setdefault(side, []).append(seconds)
        result: dict[str, object] = {
            way: {f"{side}_ms": spread(each, 1e3) for side, each in times.items()}
            for way, times in took.items()
        }
        for way, times in took.items():
            if "torchft" in times:
                ratio = statistics.median(times["torchft"]) / statistics.median(times["strata"])
                result[way]["torchft_per_strata"] = round(ratio, 2)
        result["sync_ms"] = spread(syncs, 1e3)
        result["cpu_us_per_worker_and_round"] = {
            name: round(seconds / size / (rounds + 1) / 2 * 1e6, 1)
            for side, (_, usage) in sides.items()
            for name, seconds in (
                (side, usage.server_s),
                (f"client_of_{side}", usage.client_s),
            )
        }
        return result


def bench_beats(folder: Path) -> dict[str, object]:
    """Send heartbeats as fast as they are answered, then as many as 1,000 workers send."""
    with coordinator(folder / "beats") as server:
        before = Usage(server)
        with before.measured():
            time.sleep(5)
        fleet = Fleet(server.port, WORKERS)
        rates, costs, shares = [], [], []
        for _ in range(5):
            usage = Usage(server)
            with usage.measured():
                took = fleet.beats(waves=10)
            rates.append(10 * WORKERS / took)
            costs.append(usage.server_s / 10 / WORKERS)
            shares.append(usage.client_s / usage.wall_s)
        idle = Usage(server)
        with idle.measured():
            sent = fleet.beat_evenly(IDLE_S)
        return {
            "beats_per_s": round(median(rates)),
            "cpu_us_per_beat": median(costs, 1e6, 1),
            "client_share_of_a_core": median(shares),
            "nobody_there_share_of_a_core": round(before.server_s / before.wall_s, 4),
            "idle_workers": WORKERS,
            "idle_beats_per_s": round(sent / idle.wall_s, 1),
            "idle_share_of_a_core": round(idle.server_s / idle.wall_s, 4),
            "idle_share_wanted": 0.1,
            "idle_cpu_us_per_beat": round(idle.server_s / sent * 1e6, 1),
        }


def connections() -> int:
    """The number of workers per connection: 1, if enough files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FLEET + SPARE_FILES <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return 1 if soft >= FLEET + SPARE_FILES else 100


def bench_fleet(folder: Path) -> dict[str, object]:
    """Measure 10,000 workers, each on its own connection if enough files may be open."""
    per_connection = connections()
    with coordinator(folder / "fleet") as server:
        empty_mb = server.rss_mb()
        usage = Usage(server)
        with usage.measured():
            fleet = Fleet(server.port, FLEET, per_connection)
        joined_mb = server.rss_mb()
        beating = Usage(server)
        with beating.measured():
            fleet.beats(waves=3, ahead=1)
        fleet.stay_alive()
        met = Usage(server)
        with met.measured():
            barrier_s = fleet.meet(at_once=True)
        return {
            "workers": FLEET,
            "connections": FLEET // per_connection,
            "empty_rss_mb": round(empty_mb, 1),
            "rss_mb": round(max(joined_mb, server.rss_mb()), 1),
            "rss_mb_wanted": 1_000,
            "kb_per_worker": round((joined_mb - empty_mb) / FLEET * 1e3, 1),
            "registrations_per_s": round(FLEET / fleet.registered_s),
            "join_s": round(fleet.joined_s, 2),
            "join_and_first_beat_cpu_s": round(usage.server_s, 2),
            "cpu_us_per_beat": round(beating.server_s / 3 / FLEET * 1e6, 1),
            "barrier_at_once_ms": round(barrier_s * 1e3, 1),
            "barrier_cpu_ms": round(met.server_s * 1e3),
        }


def bench_steps(folder: Path) -> dict[str, object]:
    """Measure the cost of 10,000 workers that train steps of 100 ms."""
    with coordinator(folder / "steps") as server:
        fleet = Fleet(server.port, FLEET, connections())
        usage = Usage(server)
        with usage.measured():
            sent, sent_bytes = fleet.train_evenly(STEPS_S, STEP_S)
        lag = Usage(server)
        with lag.measured():
            fleet.swarm.settle(1.0)
        return {
            "workers": FLEET,
            "step_ms": STEP_S * 1e3,
            "batches_per_s": round(sent / usage.wall_s),
            "batches_per_s_wanted": round(FLEET / SEND_INTERVAL_S),
            "mb_per_s": round(sent_bytes / usage.wall_s / 1e6, 1),
            "share_of_a_core": round(usage.server_s / usage.wall_s, 2),
            "cpu_us_per_batch_with_its_beats": round(
                (usage.server_s + lag.server_s) / sent * 1e6, 1
            ),
            "lag_s": round(lag.wall_s - 1.0, 1),
            "client_share_of_a_core": round(usage.client_s / usage.wall_s, 2),
            "rss_mb": round(server.rss_mb(), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="barrier, beats, fleet, steps; else all")
    parser.add_argument("--torchft", default="", metavar="PYTHON", help="one that has torchft")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of barriers")
    parser.add_argument("--folder", help="on the disk to measure")
    given = parser.parse_args()
    parts = given.parts or ["barrier", "beats", "fleet", "steps"]
    began = time.perf_counter()
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        if "barrier" in parts:
            result["barrier"] = {
                str(size): bench_barrier(size, given.rounds, given.torchft, folder)
                for size in given.sizes
            } | {"rounds": given.rounds, "goal_p99_ms_at_1000": GOAL_P99_MS}
        if "beats" in parts:
            result["beats"] = bench_beats(folder)
        if "fleet" in parts:
            result["fleet"] = bench_fleet(folder)
        if "steps" in parts:
            result["steps"] = bench_steps(folder)
        result["took_s"] = round(time.perf_counter() - began, 1)
        show("coordinator", result, folder)


if __name__ == "__main__":
    main()
