"""Worker processes with an injected fault: `faulty_trainee.py SCENE JSON`.

The fault starts in worker `victim` when file `gate` exists.
"""

import json
import os
import socket
import sys
import threading
import time

import numpy as np
from trainee import place, say

import strata

SLOW_S = 0.08


def slow_link(slow):
    """Delay what the training thread sends to other workers."""
    send = socket.socket.send

    def delayed(link, data, *flags):
        if slow() and threading.current_thread() is threading.main_thread():
            time.sleep(SLOW_S)
        return send(link, data, *flags)

    socket.socket.send = delayed


def steps(cause, gate, victim, count=10**6, slow_s=SLOW_S, **given):
    """Average gradients with the others; one part of the victim's step is slow."""
    with strata.join(**given) as run:
        say("joined", **place(run))

        def slow():
            return run.worker_id == victim and os.path.exists(gate)

        if cause == "communication":
            slow_link(slow)
        going = True
        while going and run.steps < count:
            began_s = time.monotonic()
            with run.timing("data"):
                time.sleep(slow_s if cause == "data" and slow() else 0.001)
            time.sleep(slow_s if cause == "compute" and slow() else 0.001)
            run.average({"g": np.ones(8, np.float32)})
            going = run.mark_step(loss=1.0)
            took_s = time.monotonic() - began_s
            say("slow step" if took_s > SLOW_S else "step", step=run.steps)
    say("left")


def lanes(**given):
    """Train a dataset with any number of workers.

    The weight of the average is explicit, so that it does not count the samples of all workers.
    """
    samples = strata.open_arrays({"x": np.arange(10**6)}, name="numbers")
    with strata.join(**given) as run:
        for batch in run.batches(samples, global_batch=8):
            with run.step():
                run.average({"g": np.ones(8, np.float32)}, 1.0)
                time.sleep(0.005)
            say("step", step=run.steps, samples=len(batch["x"]))


def main():
    name, order = sys.argv[1:]
    {"steps": steps, "lanes": lanes}[name](**json.loads(order))


if __name__ == "__main__":
    main()
