"""A training script of which one rank hangs after a few steps, in the way that it is told."""

import ctypes
import os
import signal
import sys
import time

import numpy as np

import strata

SCENE, VICTIM = sys.argv[1], 2
GOOD_STEPS = 12


def load_batch(number):
    if SCENE == "data" and number:
        time.sleep(600)
    return np.ones(4)


def skip_average():
    time.sleep(600)


def hold_the_gil():
    ctypes.PyDLL(None).sleep(600)


def stop_itself():
    os.kill(os.getpid(), signal.SIGSTOP)


HANGS = {"collective": skip_average, "gil": hold_the_gil, "stopped": stop_itself}

with strata.join() as run:
    while run.steps < 10**6:
        if SCENE == "barrier" and run.steps == GOOD_STEPS:
            if run.rank == VICTIM:
                run.report("loading_data")  # the watchdog of steps does not apply
                skip_average()
            run.barrier("evaluation")
        with run.step():
            late = run.rank == VICTIM and run.steps >= GOOD_STEPS
            batch = load_batch(late)
            if late and SCENE in HANGS:
                HANGS[SCENE]()
            time.sleep(0.1)  # so that heartbeats show several steps before the hang
            run.average(batch)
