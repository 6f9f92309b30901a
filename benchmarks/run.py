"""Run benchmarks, store each result as JSON, and render docs/BENCHMARKS.md.

    python benchmarks/run.py [NAME ...]

A name is that of a script without `bench_`; without names all of them run. A result is stored as
`benchmarks/results/NAME.json` with its date, commit and machine. Libraries that a benchmark
compares Strata with are installed into environments of their own under `build/peers`. Where pip
cannot install one, the benchmark runs without it and the result says so. A script that needs a GPU
is left out on a machine without one, and its stored result stays; so does that of a script that
takes an hour, unless it is named.

Exits with 1 if a script failed or missed its bound; the results of the others are stored.
"""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import render

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PEERS = HERE.parent / "build" / "peers"
GPU = {"checkpoint_gpu", "pinned", "saves_in_training"}
LONG = {"soak"}
# The option that names a Python with the peer's packages, and these packages.
PEER_PYTHONS = {
    "checkpoint": ("--orbax", ["orbax-checkpoint", "jax"]),
    "coordinator": ("--torchft", ["torchft-nightly", "torch==2.13.0"]),
    "fault_peers": ("--torchft", ["torchft-nightly", "torch==2.13.0"]),
    "storage": ("--boto3", ["boto3"]),
}


def names() -> list[str]:
    """Every benchmark, by the name of its script."""
    return sorted(file.stem.removeprefix("bench_") for file in HERE.glob("bench_*.py"))


def peer_python(name: str, packages: list[str]) -> str:
    """Return a Python that has the packages, or an empty string where pip cannot install them."""
    folder = PEERS / name
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", *packages]
        if subprocess.run(pip).returncode:
            return ""
        ready.touch()
    return str(python)


def arguments(name: str) -> tuple[list[str], list[str]]:
    """Return the arguments with which a script measures its peers, and the peers left out."""
    if name == "data":
        return ["--peers", str(PEERS / "data"), "--install"], []
    if name in PEER_PYTHONS:
        option, packages = PEER_PYTHONS[name]
        python = peer_python(name, packages)
        return ([option, python], []) if python else ([], packages)
    return [], []


def run(name: str) -> bool:
    """Run one benchmark and store its result; return whether it succeeded and met its bound."""
    given, left_out = arguments(name)
    command = [sys.executable, str(HERE / f"bench_{name}.py"), *given]
    print(f"{name}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    try:
        result = json.loads(done.stdout)
    except ValueError:
        print(f"{name}: no result (exit code {done.returncode})", file=sys.stderr)
        return False
    result |= {"arguments": [each for each in given if not each.startswith("/")]}
    result |= {"peers_left_out": left_out, "exit_code": done.returncode}
    text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, "utf-8")
    return done.returncode == 0


def main(wanted: list[str]) -> int:
    known = names()
    if unknown := set(wanted) - set(known):
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    missed = []
    for name in wanted or sorted({*known} - LONG):
        if name in GPU and shutil.which("nvidia-smi") is None:
            print(f"{name}: left out, there is no GPU", file=sys.stderr)
        elif not run(name):
            missed.append(name)
    render.main()
    if missed:
        print(f"failed or missed a bound: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
