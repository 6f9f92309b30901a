"""An embedded coordinator, for `strata.join()` without a coordinator address.

The process starts a coordinator as a child (`launch/companion`) and is the only worker of its task.
The run is recorded like any other. The child serves all runs of the process, one after the other,
and ends with it. A run with a name has a folder of that name, and a process that joins by the name
continues the run in it; other processes get a new folder.

It is an error if the process is evidently one of several workers: each would start its own
coordinator and train alone on all of the data.
"""

import atexit
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from strata import extras
from strata.config import Settings, inherited, load_process, variable_of_several_workers
from strata.errors import SettingError, Unavailable

MODULE = "strata.launch.companion"
END_S = 10.0
MAX_NAME = 60

HINT = (
    "run the script once with `strata run --workers N script.py`, or start a coordinator with "
    "`strata up` and set COORDINATOR_ADDR=host:port for every worker"
)


class EmbeddedCoordinator(Struct):
    """The coordinator child of this process."""

    process: subprocess.Popen[str]
    owner: int
    address: str
    url: str
    folder: str
    spool: str
    name: str = ""


_own: EmbeddedCoordinator | None = None


def settings_for_join(name: str, **given: object) -> Settings:
    """The settings of a worker; starts a coordinator if no address is set.

    `name` is that of the run to continue; empty for a new run.
    """
    settings = load_process(given)
    if name and settings.coordinator_addr:
        raise SettingError(
            f"the name {name!r} is given, but the coordinator at {settings.coordinator_addr} names "
            "its tasks itself",
            hint="continue a task with `strata continue TASK`, then join(task=TASK)",
        )
    if settings.coordinator_addr:
        return settings
    refuse_several(settings)
    if settings.task:
        raise SettingError(f"task {settings.task!r} is set, but no coordinator address", hint=HINT)
    own = coordinator(settings, name)
    return replace(
        settings,
        coordinator_addr=own.address,
        tls_cert="",
        tls_ca="",
        tls_client_cert="",
        tls_client_key="",
        world_size=1,
        start=0,
        spool_dir=settings.spool_dir or own.spool,
    )


def refuse_several(settings: Settings) -> None:
    """Raise if this process is one of several workers, or is configured to be."""
    if settings.wrapper:
        raise SettingError(
            f"this script is run by `--wrap {settings.wrapper}` and calls strata.join(), "
            "but the wrapper is already the worker",
            hint=f"run it without --wrap {settings.wrapper}",
        )
    sign = variable_of_several_workers()
    if not sign and (settings.world_size or 1) > 1:
        sign = f"world_size={settings.world_size}"
    if not sign and multiprocessing.parent_process() is not None:
        sign = "this process was started by multiprocessing"
    if not sign and _own is not None and _own.owner != os.getpid():
        sign = "this process was forked from one that had joined"
    if sign:
        raise SettingError(
            f"no coordinator address is set, but there are several workers ({sign}): each would "
            "train alone on all of the data",
            hint=HINT,
        )


def coordinator(settings: Settings, name: str) -> EmbeddedCoordinator:
    """The coordinator of this process; if there is none for this name, start it and say so."""
    global _own
    if _own is not None and _own.name != name:
        _end()
    if _own is None or _own.process.poll() is not None:
        _own = start(settings, name)
        where = os.path.relpath(_own.folder)
        where = _own.folder if where.startswith("..") else where
        print(
            "strata: no coordinator address is set, training alone with an embedded coordinator: "
            f"dashboard {_own.url}, data {where}",
            file=sys.stderr,
            flush=True,
        )
    return _own


def start(settings: Settings, name: str) -> EmbeddedCoordinator:
    """Start a coordinator and wait until it serves."""
    if not extras.installed("litestar"):
        raise SettingError(
            "no coordinator address is set, and the packages of a coordinator are not installed",
            hint="set COORDINATOR_ADDR=host:port, or pip install 'strata-runtime[server]'",
        )
    named = {
        "STRATA_CHECKPOINT_DIR": settings.checkpoint_dir,
        "STRATA_SPOOL_DIR": settings.spool_dir,
    }
    variables = {name: value for name, value in named.items() if value}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(os.getpid()), script_name(), safe_name(name)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=inherited() | variables,
        text=True,
        start_new_session=True,  # Ctrl-C must reach only the script, which then leaves its run
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            lines = process.stderr.read().strip().splitlines() or ["it printed no error"]
            raise Unavailable(
                f"the embedded coordinator did not start: {lines[-1]}",
                hint="fix that, or start one with `strata up` and set COORDINATOR_ADDR=host:port",
            )
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()
        process.stderr.close()
    return EmbeddedCoordinator(process=process, owner=os.getpid(), name=name, **json.loads(line))


def script_name() -> str:
    """The name of the run's folder: that of the script, notebook or interpreter."""
    name = Path(sys.argv[0] if sys.argv else "").stem
    if name.startswith(("ipykernel", "colab_kernel")):
        name = "notebook"
    return safe_name(name) or "python"


def safe_name(name: str) -> str:
    """A name that can be part of a path."""
    safe = "".join(each if each.isalnum() or each in "._-" else "-" for each in name)
    return safe.strip("-.")[:MAX_NAME]


@atexit.register
def _end() -> None:
    """End the coordinator after the runs of this process have left."""
    if _own is None or _own.owner != os.getpid() or _own.process.poll() is not None:
        return
    _own.process.terminate()
    try:
        _own.process.wait(END_S)
    except subprocess.TimeoutExpired:
        _own.process.kill()
        _own.process.wait()
