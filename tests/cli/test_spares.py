"""Guards `--spares`: a waiting process replaces one that was killed, and spares that still wait
at the end exit without an error."""

import os
import signal

import httpx

from strata.timeline.archive.run_lookup import open_timeline
from tests.agent.harness import until, worker_pids
from tests.cli.runs import seen, url_of


def test_a_waiting_process_takes_the_seat_of_a_killed_one(folder, started):
    running = started("train.py", "--workers", "2", "--spares", "1")
    running.wait_for(seen("generation 1 trains"), "training")
    url = url_of(running)

    def workers():
        return {each["id"]: each for each in httpx.get(f"{url}/api/workers").json()}

    def spare():
        found = [each for each in workers().values() if each["rank"] < 0]
        return found[0]["id"] if [each["state"] for each in found] == ["idle"] else ""

    waiting = until(spare, "a spare")
    assert workers()[waiting]["status"] == "idle"
    pid = worker_pids(folder)[waiting]
    victim = next(each["id"] for each in workers().values() if each["rank"] == 1)
    os.kill(worker_pids(folder)[victim], signal.SIGKILL)
    running.wait_for(seen("generation 2 continues from step"), "recovery")
    assert workers()[waiting]["rank"] >= 0
    assert worker_pids(folder)[waiting] == pid
    assert until(spare, "another spare") == victim
    (folder / "finish").touch()
    assert running.ended() == 0, running.out
    found = roles(folder)
    assert found.pop(waiting) == ["spare"]
    assert found.pop(victim) == ["trainer", "spare"]
    assert list(found.values()) == [["trainer"]]
    output = "".join(running.out)
    assert "1 loss, 1 recovery" in output
    assert "Traceback" not in output
    assert not worker_pids(folder)


def roles(folder):
    """The role that each worker recorded at each of its starts."""
    found = {}
    (data,) = {each.parent for each in (folder / "strata-data").rglob("*.db")}
    with open_timeline(data) as timeline:
        for record in timeline.records(kinds=frozenset({"RunStarted"})):
            found.setdefault(record.node, []).append(record.text("role"))
    return found
