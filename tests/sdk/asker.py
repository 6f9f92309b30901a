"""A worker that makes every SDK call while its coordinator is unreachable: `asker.py SCENE JSON`.

Before each call it waits for a file. When a call has waited for the coordinator for longer than the
limits set here it prints `asking`, and afterwards `ended`, with the error if any.
"""

import os
import sys
import threading
import time

import numpy as np
from trainee import main, say, scene

import strata
from strata.sdk import run
from strata.sdk.session import channel, registration

WAITS = {
    ("worker_session.py", "wait_for"),
    ("worker_session.py", "call"),
    ("saver.py", "wait"),
    ("channel.py", "persist"),
}


LIMIT_S = 0.3
LONG_S = 0.6
LOOK_S = 0.01


def waits_for_the_coordinator(thread: int) -> bool:
    """Whether the thread is in an SDK call that waits for an answer."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        code = frame.f_code
        if (os.path.basename(code.co_filename), code.co_name) in WAITS:
            return True
        frame = frame.f_back
    return False


def watched(name, gate, call):
    """Make a call once file `gate`/`name` exists; print when it waits and how it ends."""
    say("ready", call=name)
    while not os.path.exists(os.path.join(gate, name)):
        time.sleep(0.005)
    ended, own = threading.Event(), threading.get_ident()

    def watch():
        waited = 0
        while not ended.is_set() and waited < LONG_S / LOOK_S:
            waited += waits_for_the_coordinator(own)
            time.sleep(LOOK_S)
        say("asking", call=name)

    watching = threading.Thread(target=watch)
    watching.start()
    error = ""
    try:
        call()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    ended.set()
    watching.join()
    say("ended", call=name, error=error)


def impatient() -> None:
    """Shorten all limited waits, so that the coordinator is unreachable for longer."""
    registration.CONNECT_TIMEOUT_S = run.LEAVE_TIMEOUT_S = LIMIT_S
    channel.CALL_TIMEOUT_S = LIMIT_S


@scene
def ask(gate, data, **given):
    """Make every call of a script, one after the other; saves only on request."""
    impatient()
    joined = strata.join(checkpoint_every=10_000, **given)
    model = {"weight": np.zeros(10)}
    rows = strata.open_dataset(data, name="rows")
    numbers = strata.open_dataset(data, name="numbers")
    small = [{"x": float(number)} for number in range(8)]

    def step():
        with joined.step() as step:
            model["weight"] += 1
            step.log(loss=1.0)

    def trained(batches):
        next(batches)
        step()

    def saved():
        joined.save()
        joined._run_state.saver.wait(60)
        if joined._run_state.saver.failure:
            raise RuntimeError(joined._run_state.saver.failure)

    def open_shards():
        nonlocal shards
        shards = joined.shards(numbers, batch_size=4, epochs=1)
        next(shards)

    shards = iter(())
    calls = {
        "restore": lambda: joined.restore(model),
        "batches of data at hand": lambda: trained(joined.batches(rows, global_batch=4)),
        "batches by name": lambda: trained(joined.batches("rows", global_batch=4)),
        "length": lambda: len(joined.batches("rows", global_batch=4, epochs=1)),
        "mixture": lambda: trained(joined.batches({"rows": 1.0}, global_batch=4)),
        "agree": lambda: joined.agree(1),
        "barrier": lambda: joined.barrier("b"),
        "evaluate": lambda: joined.evaluate(small, len),
        "save": saved,
        "shards": open_shards,
        "next shard": lambda: next(shards),
        "stop": lambda: joined.stop("enough"),
        "leave": joined.leave,
    }
    for name, call in calls.items():
        watched(name, gate, call)


@scene
def join_for_an_agent(gate, **given):
    """Join like a process that an agent has started."""
    impatient()
    os.environ["STRATA_START"] = "1"
    watched("join", gate, lambda: strata.join(**given).leave())


@scene
def ask_orchestrator(gate, coordinator, **given):
    """Make every call of `TrainingOrchestrator`."""
    impatient()
    orchestrator = strata.TrainingOrchestrator(coordinator)
    watched("register", gate, lambda: orchestrator.register_worker("o"))
    calls = {
        "register dataset": lambda: orchestrator.register_dataset("numbers", 100, 10),
        "shards": lambda: orchestrator.get_shards("numbers"),
        "shard": lambda: orchestrator.get_shard("numbers"),
        "epoch": lambda: orchestrator.advance_epoch("numbers"),
        "heartbeat": lambda: orchestrator.heartbeat(1),
        "checkpoint": lambda: orchestrator.notify_checkpoint(1),
        "latest": orchestrator.latest_checkpoint,
        "barrier": lambda: orchestrator.barrier("b"),
        "deregister": orchestrator.deregister,
    }
    for name, call in calls.items():
        watched(name, gate, call)


if __name__ == "__main__":
    main()
