"""Trains without Strata, in processes forked from this one, which has imported the framework.

    python plain_ranks.py SCRIPT MODULE

Each line on stdin is a JSON list with the environment of each rank. The answer is a line with a
JSON list: the exit code and the output of each rank.
"""

import importlib
import json
import os
import runpy
import sys
import traceback


def run_rank(script, environment, output) -> None:
    """Become one rank: run the script with this environment and end."""
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = [script]
    sys.path.insert(0, os.path.dirname(script))
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    script, module = sys.argv[1:]
    importlib.import_module(module)
    for line in sys.stdin:
        ranks = []
        for environment in json.loads(line):
            output = os.memfd_create("output")
            if (pid := os.fork()) == 0:
                run_rank(script, environment, output)
            ranks.append((pid, output))
        ended = []
        for pid, output in ranks:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            ended.append((code, os.pread(output, os.fstat(output).st_size, 0).decode()))
            os.close(output)
        print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
