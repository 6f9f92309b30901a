"""Guards forks between collectives: on some versions of Python the child could hang, so a
`DataLoader` with worker processes would never return a batch.
"""

import subprocess
import sys

FORKS = 20
TIMEOUT_S = 30

PROGRAM = f"""
import ctypes, os, signal, threading, time
import strata.torch

api = ctypes.CDLL(None)  # releases the GIL, as PyTorch's threads do not hold it
for function in (api.PyInterpreterState_Main, api.PyThreadState_New):
    function.restype = ctypes.c_void_p
interpreter = ctypes.c_void_p(api.PyInterpreterState_Main())
asked, started = threading.Event(), threading.Event()


def create_states():
    api.prctl(15, b"pt_gloo_runloop", 0, 0, 0)
    while True:
        asked.wait()
        asked.clear()
        until_s = time.monotonic() + 0.02
        started.set()
        while time.monotonic() < until_s:
            api.PyThreadState_Delete(ctypes.c_void_p(api.PyThreadState_New(interpreter)))


threading.Thread(target=create_states, daemon=True).start()
for _ in range({FORKS}):
    asked.set()
    started.wait()
    started.clear()
    child = os.fork()
    if child == 0:
        os._exit(0)
    deadline_s = time.monotonic() + {TIMEOUT_S}
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
            os._exit(1)
        time.sleep(0.001)
    print("ended", flush=True)
os._exit(0)
"""


def test_child_forked_while_torch_creates_thread_states_does_not_hang():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("ended")) == (0, FORKS), done.stderr
