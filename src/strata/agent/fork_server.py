"""`python fork_server.py FD SCRIPT`: import a script's modules, then fork to start workers.

Importing torch takes seconds; forking a process that has imported it takes milliseconds. The agent
keeps one such process per task and asks it, through the socket FD, to start a worker or to collect
a worker's exit status. It runs none of the script's own code. A forked worker sets up its session,
streams, environment, working directory and `__main__` as `python SCRIPT` does.

Forking is safe only while this process has one thread, no connection, no child and no open GPU.
This is checked after the imports. Before each fork the imported files are checked for changes: a
new process would import the new ones. If a check fails, the agent starts a new process instead.

The worker waits until the agent has recorded its pid. If the agent dies before that, the worker
ends without having run the script. If the agent dies, this process ends; the workers continue.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from strata.agent.process_title import show_process_as
from strata.agent.script_imports import Import, imports_of, local_modules
from strata.config import replace_environment

MAX_MESSAGE_BYTES = 1 << 20
STREAMS = 3
PR_SET_PDEATHSIG = 1

UNFORKABLE = frozenset({"horovod", "jax", "jaxlib", "mpi4py", "ray", "tensorflow", "torch_xla"})
"""Packages whose import starts threads or connects to other processes."""

FORKABLE_THREADS = frozenset({"jemalloc_bg_thd"})
"""Jemalloc, a dependency of pyarrow, locks its arenas for a fork and has no thread after it."""

OPEN_RESOURCES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "socket:", "pipe:", "anon_inode:")
"""Open files that a forked process must not share."""


class Unfit(Exception):
    """This process cannot be forked; the message is the reason."""


def main() -> None:
    """Import, report whether forking is safe, and serve until the agent has ended."""
    agent = socket.socket(fileno=int(sys.argv[1]))
    script = Path(sys.argv[2])
    _end_with_parent()
    _silence()
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file, which is not in a script's path
    try:
        files = warm_up(script)
    except Unfit as reason:
        _send(agent, error=str(reason))
        return
    gc.collect()
    gc.freeze()  # so that a collection in a worker does not copy shared pages
    _send(agent, ready=True)
    if request := serve(agent, files):
        run_script(request)


def warm_up(script: Path) -> dict[str, tuple[int, int]]:
    """Import the script's modules; returns the state of every imported file."""
    try:
        found = imports_of(script)
    except (OSError, SyntaxError) as error:
        raise Unfit(f"the script cannot be read: {error}") from error
    _refuse_unforkable({each.module.partition(".")[0] for each in found.imports})
    for each in found.imports:
        _import(each)
    _refuse_unforkable(set(sys.modules))
    _refuse_shadowed(script.resolve().parent)
    _refuse_resources()
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    names = {name for name in modules if isinstance(name, str) and os.path.isabs(name)}
    names |= {str(file) for file in found.files}
    return {name: state for name in sorted(names) if (state := _state(name))}


def _import(wanted: Import) -> None:
    try:
        module = importlib.import_module(wanted.module)
        for name in wanted.names:
            if not hasattr(module, name):  # also triggers a package's lazy imports
                _import(Import(f"{wanted.module}.{name}"))
        if wanted.module == "strata":
            importlib.import_module("strata.sdk.run")
    except ImportError:
        return  # the script will get the same error, and may handle it
    except Exception as error:
        raise Unfit(f"import of {wanted.module} failed: {error!r}") from error


def _refuse_unforkable(names: set[str]) -> None:
    if found := UNFORKABLE & names:
        raise Unfit(f"{', '.join(sorted(found))} cannot be forked after its import")


def _refuse_shadowed(folder: Path) -> None:
    """Raise if a file in the script's folder, which is searched first, shadows a loaded module."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    for name in (loaded & local_modules(folder)) - {*sys.builtin_module_names, "__main__"}:
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if not Path(file).resolve().is_relative_to(folder):
            raise Unfit(f"{name} in the script's folder shadows the module of that name")


def _refuse_resources() -> None:
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except FileNotFoundError:
            continue  # the descriptor of the directory listing
        own = int(entry.name) <= 2 or entry.name == sys.argv[1]
        if not own and target.startswith(OPEN_RESOURCES):
            raise Unfit(f"an import opened {target}")
    # A fork makes libraries that support it, such as OpenBLAS, stop their threads.
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if threads := len(_other_threads()):
        raise Unfit(f"an import started {threads} threads")
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return
    raise Unfit("an import started a process")


def _other_threads() -> list[str]:
    """The names of other threads that do not support a fork."""
    own = str(os.getpid())
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != own]
    names = [(task / "comm").read_text().strip() for task in tasks]
    return [name for name in names if name not in FORKABLE_THREADS]


def serve(agent: socket.socket, files: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Answer requests. Returns in a worker with its request, else when the agent has ended."""
    while True:
        data, fds, _, _ = socket.recv_fds(agent, MAX_MESSAGE_BYTES, STREAMS)
        if not data:
            return {}
        request = json.loads(data)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            _send(agent, code=os.waitstatus_to_exitcode(status))
            continue
        changed = next((name for name, state in files.items() if _state(name) != state), "")
        if changed:
            _send(agent, error=f"{changed} has changed")
            continue
        if _fork(agent, request, fds):
            return dict(request)


def _fork(agent: socket.socket, request: dict[str, Any], fds: list[int]) -> bool:
    """Fork a worker and report it to the agent; True in the worker."""
    result, error_pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(result)
        try:
            become_worker(agent, request, fds, error_pipe)
        except BaseException as error:
            os.write(error_pipe, repr(error).encode())
            os._exit(1)
        return True
    for fd in (error_pipe, *fds):
        os.close(fd)
    problem = os.read(result, 1000).decode()
    os.close(result)
    if problem:
        os.waitpid(child, 0)
        _send(agent, error=problem)
    else:
        _send(agent, pid=child)
    return False


def become_worker(
    agent: socket.socket, request: dict[str, Any], fds: list[int], error_pipe: int
) -> None:
    """Set up a worker like a new interpreter process; returns when the script may run."""
    os.setsid()
    agent.close()
    os.chdir(request["cwd"])
    stdin = os.open(os.devnull, os.O_RDONLY)
    stdout, stderr, go = fds
    for fd, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, number)
        os.close(fd)
    environment: dict[str, str] = request["environment"]
    replace_environment(environment)
    sys.argv = [request["script"], *request["args"]]
    sys.orig_argv = [sys.executable, *sys.argv]
    show_process_as(sys.orig_argv, environment)
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(request["script"]).resolve().parent))
    _reseed()
    os.close(error_pipe)
    if not os.read(go, 1):
        os._exit(1)  # the agent ended before it had recorded this process
    os.close(go)


def _reseed() -> None:
    """Reseed the random generators that modules seeded at import."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        process = sys.modules["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)


def run_script(request: dict[str, Any]) -> None:
    """Run the script as `__main__`, and end this process with it."""
    script: str = request["script"]
    path = os.path.join(os.getcwd(), script)
    main_module = ModuleType("__main__")
    vars(main_module).update(
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __builtins__=sys.modules["builtins"],
        __annotations__={},
    )
    sys.modules["__main__"] = main_module
    try:
        try:
            source = Path(script).read_bytes()
        except OSError as error:
            print(f"{sys.executable}: can't open file {path!r}: {error}", file=sys.stderr)
            sys.exit(2)
        exec(compile(source, path, "exec"), vars(main_module))
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        assert trace is not None
        trace = trace.tb_next  # without the frame of this function
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        # Raised again for the exit code or, after Ctrl-C, the signal; already printed.
        sys.excepthook = lambda *_: None
        raise


def _state(name: str) -> tuple[int, int] | None:
    """The modification time and size of a file."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _send(agent: socket.socket, **answer: object) -> None:
    agent.send(json.dumps(answer).encode())


def _silence() -> None:
    """Discard all output; `sys.stdout` keeps the buffering of a pipe, as in a worker."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _end_with_parent() -> None:
    """Have the kernel kill this process with the agent, also during a long import."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
