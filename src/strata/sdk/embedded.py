"""An embedded run: `strata.join()` where no coordinator is named.

The process starts a coordinator of its own as a child (`launch/companion`) and is the only worker
of its task. The run is recorded as any other. The child serves all runs of the process, one after
the other, and ends with it.

This is refused where the process is visibly one of several: each of them would start its own
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

from strata.config import Settings, inherited, load_process, variable_of_several_workers
from strata.errors import SettingError, Unavailable

MODULE = "strata.launch.companion"
END_S = 10.0
MAX_NAME = 60

HINT = (
    "run the script once with `strata run --workers N script.py`, or start a coordinator with "
    "`strata up` and set COORDINATOR_ADDR=host:port for every worker"
)


class Coordinator(Struct):
    """The coordinator of this process."""

    process: subprocess.Popen[str]
    owner: int
    address: str
    url: str
    folder: str
    spool: str


_own: Coordinator | None = None


def settings_for_join(**given: object) -> Settings:
    """The settings of a worker; where no coordinator is named, one is started for it."""
    settings = load_process(given)
    if settings.coordinator_addr:
        return settings
    refuse_several(settings)
    if settings.task:
        raise SettingError(f"task {settings.task!r} is named, but no coordinator", hint=HINT)
    own = coordinator(settings)
    return replace(
        settings,
        coordinator_addr=own.address,
        tls_cert="",
        world_size=1,
        start=0,
        spool_dir=settings.spool_dir or own.spool,
    )


def refuse_several(settings: Settings) -> None:
    """Raises where this process is one of several workers, or asks to be."""
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
            f"no coordinator is named, but there are several workers ({sign}): each would train "
            "alone on all of the data",
            hint=HINT,
        )


def coordinator(settings: Settings) -> Coordinator:
    """The coordinator of this process; started, and said so in one line, if there is none."""
    global _own
    if _own is None or _own.process.poll() is not None:
        _own = start(settings)
        where = os.path.relpath(_own.folder)
        where = _own.folder if where.startswith("..") else where
        print(
            "strata: no coordinator is named, training alone with an embedded one: "
            f"dashboard {_own.url}, data {where}",
            file=sys.stderr,
            flush=True,
        )
    return _own


def start(settings: Settings) -> Coordinator:
    """Starts a coordinator and waits until it serves."""
    named = {
        "STRATA_CHECKPOINT_DIR": settings.checkpoint_dir,
        "STRATA_SPOOL_DIR": settings.spool_dir,
    }
    told = {name: value for name, value in named.items() if value}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(os.getpid()), script_name()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=inherited() | told,
        text=True,
        start_new_session=True,  # Ctrl-C is for the script, which then leaves its run
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        if not line:
            said = process.stderr.read().strip().splitlines() or ["it said nothing"]
            raise Unavailable(
                f"the embedded coordinator did not start: {said[-1]}",
                hint="fix that, or start one with `strata up` and set COORDINATOR_ADDR=host:port",
            )
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()
        process.stderr.close()
    return Coordinator(process=process, owner=os.getpid(), **json.loads(line))


def script_name() -> str:
    """A name for the run's folder: the script's, or what there is instead of a script."""
    name = Path(sys.argv[0] if sys.argv else "").stem
    if name.startswith(("ipykernel", "colab_kernel")):
        name = "notebook"
    safe = "".join(each if each.isalnum() or each in "._-" else "-" for each in name)
    return safe.strip("-.")[:MAX_NAME] or "python"


@atexit.register
def _end() -> None:
    """Ends the coordinator after the runs of this process have left."""
    if _own is None or _own.owner != os.getpid() or _own.process.poll() is not None:
        return
    _own.process.terminate()
    try:
        _own.process.wait(END_S)
    except subprocess.TimeoutExpired:
        _own.process.kill()
        _own.process.wait()
