"""Try several learning rates: submit a task for each, wait for all, and compare what they logged.

    strata up                                                    # the coordinator
    strata agent --coordinator 127.0.0.1:50051 --slots 2         # on each host
    python examples/sweep.py --rates 0.005 0.02 0.05

A loop calls `strata submit`; the queue starts the tasks as slots become free. Each learning rate
is an entry of `run.config` and is recorded with its task. The page Compare shows the curves of
all tasks and the differences of their configurations. With `--json` programs can read any verb.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("digits.py")


def strata(*arguments):
    """What a verb of Strata prints."""
    done = subprocess.run(["strata", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def rows(*arguments):
    """What a verb of Strata prints as JSON, one object per line."""
    return [json.loads(line) for line in strata(*arguments, "--json").splitlines()]


def submitted(rate, options):
    """Submit the task of one learning rate; returns its id."""
    config = ("--config", f"rate={rate}", "--config", f"epochs={options.epochs}")
    named = ("--name", f"rate-{rate}", "--workers", str(options.workers))
    return strata("submit", str(SCRIPT), *named, *config, "--url", options.url).strip()


def ended(tasks, url):
    """Wait until all tasks have ended; returns the state of each."""
    while True:
        states = {each["id"]: each["status"] for each in rows("tasks", "--url", url)}
        if all(states[task] in ("completed", "failed", "stopped") for task in tasks):
            return {task: states[task] for task in tasks}
        time.sleep(2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", type=float, nargs="+", default=[0.005, 0.02, 0.05])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--url", default="http://127.0.0.1:3000")
    options = parser.parse_args()

    tasks = {submitted(rate, options): rate for rate in options.rates}
    states = ended(tasks, options.url)
    found = {}
    for task, rate in tasks.items():
        if states[task] != "completed":
            print(f"rate {rate:g}: {task} {states[task]}; see `strata why failed {task}`")
            continue
        curves = {each["name"]: each for each in rows("metrics", task, "--url", options.url)}
        found[rate] = curves["accuracy"]["last"]
        print(f"rate {rate:g}: accuracy {found[rate]:.1%}, last loss {curves['loss']['last']:.3f}")
    if found:
        print(f"best: rate {max(found, key=found.get):g}")
    print(f"compare: {options.url}/#/compare?tasks={','.join(tasks)}")


if __name__ == "__main__":
    main()
