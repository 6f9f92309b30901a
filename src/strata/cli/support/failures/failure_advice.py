"""What to do about the failures that are frequent in the first hour, by what the task reports.

The advice is printed below the summary of `strata run`. It states only what follows from the
exception or the reason; a failure that is not known here gets none.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from strata import extras


class Place(NamedTuple):
    """Where the workers ran: options of `strata why` for their log; their Python, if it is known,
    and the environment that is active in this shell."""

    look_back: str
    python: str = ""
    environment: str = ""


class Failure(NamedTuple):
    """A pattern that was found, and where."""

    text: str
    script: Path
    place: Place


def advice(place: Place, script: Path, reason: str, exceptions: Sequence[str]) -> str:
    """What to do about a failed task, from its reason and its exceptions; empty if not known.

    The exceptions count only if the reason is an exit code: a task may also fail for another reason
    after an exception that its script handled.
    """
    texts = [reason, *(reversed(exceptions) if "exit code" in reason else [])]
    for text in texts:
        for pattern, explain in RULES:
            if found := re.search(pattern, text):
                return explain(Failure(found[found.re.groups], script, place))
    return ""


PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
}
"""Packages on PyPI whose modules have other names."""


def missing_module(failure: Failure) -> str:
    """A module that cannot be imported: in the wrong folder, another environment, or missing."""
    name, place, here = failure.text.partition(".")[0], failure.place, Path.cwd()
    if here != failure.script.parent and ((here / name).is_dir() or (here / f"{name}.py").exists()):
        return (
            f"{name} is in {here}, but Python looks in the folder of the script: "
            f"add --env PYTHONPATH={here}"
        )
    if not place.python:
        return f"install {name} in the Python environment of the agents (strata hosts lists them)"
    extra = next((each.name for each in extras.EXTRAS if name in each.modules), "")
    library = f"'strata-runtime[{extra}]'" if extra else PACKAGES.get(name, name)
    install = f"{place.python} -m pip install {library}"
    if place.environment and not place.python.startswith(f"{place.environment}/"):
        return (
            f"the workers run with the Python of strata, {place.python}, and not with the active "
            f"environment {place.environment}: install strata there "
            f"({place.environment}/bin/python -m pip install strata-runtime) and use "
            f"{place.environment}/bin/strata, or install {name} here: {install}"
        )
    return f"the workers run with {place.python}, where {name} is not installed: {install}"


def missing_file(failure: Failure) -> str:
    """A file that a script did not find."""
    path = failure.text
    if path.startswith("/"):
        return f"check the path {path}; it must exist on every host that runs workers"
    return f"{path} is relative to the folder of `strata run`, {Path.cwd()}: give a full path"


def out_of_memory(failure: Failure) -> str:
    """The memory of the host was not enough."""
    return "use less memory in each worker (a smaller batch or model), or fewer workers per host"


def out_of_gpu_memory(failure: Failure) -> str:
    """The memory of a GPU was not enough."""
    return (
        "use less GPU memory in each worker (a smaller batch or model), and check that no other "
        "process uses the GPU: nvidia-smi"
    )


def killed(failure: Failure) -> str:
    """A process that ended with signal 9."""
    return (
        "signal 9 usually comes from the kernel when memory is used up; "
        f"`strata why lost {failure.place.look_back}` says whether an OOM kill was counted. Then "
        f"{out_of_memory(failure)}"
    )


def never_joined(failure: Failure) -> str:
    """A script without `strata.join()`."""
    return (
        "put the training into `with strata.join() as run:` (`strata init` writes an example), or "
        "run a script for torchrun unchanged with --wrap torchrun"
    )


RULES: list[tuple[str, Callable[[Failure], str]]] = [
    (r"ModuleNotFoundError: No module named '([^']+)'", missing_module),
    (r"FileNotFoundError: \[Errno 2\] [^:]+: '([^']+)'", missing_file),
    (r"NotFound: dataset .*: (\S+) does not exist", missing_file),
    (r"OutOfMemoryError: CUDA|CUDA out of memory|RESOURCE_EXHAUSTED", out_of_gpu_memory),
    (r"MemoryError|[Cc]an(?:'t|not) allocate memory", out_of_memory),
    (r"with signal 9\b", killed),
    (r"and never joined", never_joined),
]
"""Patterns of exceptions and reasons, with what to do; the first one that matches is used."""
