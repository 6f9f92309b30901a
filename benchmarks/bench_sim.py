"""Speed of the simulator: virtual hours with all faults in a minute of CPU, and the load on a
coordinator of 10,000 workers. Prints one JSON object.

    python benchmarks/bench_sim.py [--full]

The large fleet trains a short task without faults; with `--full` it is the usual task of 120 steps,
which takes some minutes.
"""

import argparse
import time

import msgspec
from common import median, show

from strata.sim.sim_report import Report, report
from strata.sim.simulation import Scenario, Simulation

SEEDS = 5
HOURS = 6.0
LARGE = 10_000
SHORT_STEPS = 20
WANTED_HOURS_PER_MINUTE = 200


def run(scenario: Scenario) -> Report:
    """Run a scenario; raises if a check fails."""
    return report(Simulation(scenario).run())


def bench_hours() -> dict[str, object]:
    """Eight workers, as in the fixed set of seeds, and for comparison four and sixteen."""
    found: dict[str, object] = {}
    for workers in (4, 8, 16):
        runs = [run(Scenario(seed=seed, workers=workers, hours=HOURS)) for seed in range(SEEDS)]
        found[f"{workers}_workers"] = {
            "hours_per_cpu_minute": median([each.hours_per_cpu_minute for each in runs], digits=1),
            "slowest_seed": round(min(each.hours_per_cpu_minute for each in runs), 1),
            "facts": sum(sum(each.facts.values()) for each in runs),
            "faults": sum(sum(each.faults.values()) for each in runs),
            "coordinator_crashes": sum(each.coordinator_crashes for each in runs),
        }
    return {"seeds": SEEDS, "hours_wanted_per_cpu_minute": WANTED_HOURS_PER_MINUTE, **found}


def bench_large(full: bool) -> dict[str, object]:
    """One task of 10,000 workers, and how the load is spread over its life."""
    scenario = Scenario(workers=LARGE, hours=0.02, faults=())
    if not full:
        scenario = msgspec.structs.replace(scenario, steps=SHORT_STEPS)
    began = time.perf_counter()
    done = run(scenario)
    return {
        "workers": LARGE,
        "steps": scenario.steps,
        "virtual_hours": round(done.virtual_hours, 3),
        "cpu_s": round(done.cpu_s, 1),
        "wall_s": round(time.perf_counter() - began, 1),
        "facts": sum(done.facts.values()),
        "commonest": dict(list(done.facts.items())[:5]),
        "carried": {
            "facts_per_s": round(done.load.facts_per_s, 1),
            "log_bytes_per_s": round(done.load.log_bytes_per_s),
            "messages_per_s": round(done.load.messages_per_s, 1),
            "state_mb": round(done.load.state_bytes / 1e6, 1),
            "snapshot_mb": round(done.load.snapshot_bytes / 1e6, 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the large fleet's usual task")
    given = parser.parse_args()
    began = time.perf_counter()
    result = {"with_faults": bench_hours(), "large_fleet": bench_large(given.full)}
    result["took_s"] = round(time.perf_counter() - began, 1)
    show("sim", result)


if __name__ == "__main__":
    main()
