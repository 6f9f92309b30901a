"""Environments with a chosen Python and chosen versions of the dependencies, made by uv."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv", "--no-config", "--quiet"]
INSTALL_S = 300
OURS = ("STRATA_", "COORDINATOR_", "WORKER_ID", "RANK", "WORLD_SIZE", "PYTHON")
"""Variables that an environment of its own must not inherit."""


def bare() -> dict[str, str]:
    """The variables of a new shell: none of Strata's, and none that change Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)}


def call(*command: object, cwd: Path = ROOT, timeout_s: float = INSTALL_S) -> str:
    """Run a command to its end and return its output; raises with the output if it fails."""
    done = subprocess.run(
        [str(each) for each in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        cwd=cwd,
        env=bare(),
    )
    assert done.returncode == 0, (
        f"{command} exited with {done.returncode}:\n{done.stdout[-20_000:]}"
    )
    return done.stdout


def python_of(version: str) -> Path | None:
    """An installed Python of a version such as 3.13, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python{version}")]
    for candidate in [Path(sys.executable), *filter(None, found)]:
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            answer = subprocess.run(asked, capture_output=True, text=True, timeout=20)
        except OSError:
            continue
        if answer.stdout.strip() == version:
            return Path(candidate)
    return None


class Distribution(Struct, frozen=True):
    """The files that a release consists of."""

    wheel: Path
    sdist: Path


def build(folder: Path) -> Distribution:
    """Build the wheel and the source archive, with the build packages of this environment."""
    call(
        *UV, "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT
    )
    return Distribution(wheel=next(folder.glob("*.whl")), sdist=next(folder.glob("*.tar.gz")))


class Environment(Struct, frozen=True):
    """A virtual environment in which Strata is installed from its wheel."""

    folder: Path

    def program(self, name: str) -> Path:
        """The path of an installed command."""
        return self.folder / "bin" / name


def install(
    folder: Path,
    python: Path,
    wheel: Path | None,
    *,
    resolution: str,
    extras: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> Environment:
    """Install the wheel with dependencies of a resolution: `lowest-direct` or `highest`; without
    a wheel only these.

    Only versions with a wheel for this Python are considered, as pip would choose them.
    `others` are installed beside them.
    """
    made = Environment(folder)
    into = made.program("python")
    lock = folder / "requirements.txt"
    call(*UV, "venv", "--python", python, folder)
    chosen = [option for extra in extras for option in ("--extra", extra)]
    command = ["pip", "compile", "--only-binary", ":all:", "--resolution", resolution, *chosen]
    call(*UV, *command, "--python", into, "--output-file", lock, ROOT / "pyproject.toml")
    call(*UV, "pip", "install", "--python", into, "-r", lock, *others)
    if wheel is not None:
        call(*UV, "pip", "install", "--python", into, "--no-deps", wheel)
    return made
