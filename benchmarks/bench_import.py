"""Time and CPU time of `import strata; strata.join` in a new process, as a worker imports it.

Median of five processes after one that writes the bytecode. On an idle machine both times are about
the same; beside other load only the CPU time says what the import costs. Beside it the same for
NumPy and gRPC, which a worker imports in any case, and what Strata adds to them.
"""

import statistics
import subprocess
import sys

from common import show

RUNS = 5
IMPORTS = {
    "strata": "import strata; strata.join",
    "numpy_and_grpc": "import numpy, grpc",
}
MEASURE = """
import time
began_s, cpu_s = time.perf_counter(), time.process_time()
{code}
print(time.perf_counter() - began_s, time.process_time() - cpu_s)
import sys
print(len(sys.modules))
"""


def measured(code: str) -> dict[str, float]:
    """Medians of the wall and CPU seconds of an import, and the number of modules after it."""
    command = [sys.executable, "-c", MEASURE.format(code=code)]
    runs = []
    for _ in range(RUNS + 1):
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
        wall_s, cpu_s, modules = done.stdout.split()
        runs.append((float(wall_s), float(cpu_s), int(modules)))
    walls_s, cpus_s, counts = zip(*runs[1:], strict=True)
    return {
        "wall_s": round(statistics.median(walls_s), 3),
        "cpu_s": round(statistics.median(cpus_s), 3),
        "modules": counts[0],
    }


def main() -> None:
    """Measure and print."""
    found = {name: measured(code) for name, code in IMPORTS.items()}
    added = {
        figure: round(found["strata"][figure] - found["numpy_and_grpc"][figure], 3)
        for figure in ("wall_s", "cpu_s")
    }
    show("import", {"runs": RUNS, **found, "added_by_strata": added})


if __name__ == "__main__":
    main()
