"""Check the coordinator, the storage and this host: what works, and what must be fixed."""

import sys

import msgspec
from rich.text import Text

from strata.cli.support.doctor.certificate_checks import file_checks
from strata.cli.support.doctor.check_result import Check
from strata.cli.support.doctor.connection_checks import coordinator_checks, port_checks
from strata.cli.support.doctor.gpu_checks import gpu_checks
from strata.cli.support.doctor.host_checks import host_checks
from strata.cli.support.doctor.storage_checks import storage_checks
from strata.cli.support.exit_codes import DONE, FAILED
from strata.cli.support.options import AsJson, Url
from strata.cli.support.tables import console, plain, print_json
from strata.config import load_process
from strata.timeline.read.sentences import counted

STYLES = {"ok": "green", "fix": "red", "not checked": "dim"}


def doctor(url: Url = None, as_json: AsJson = False) -> None:
    """Check the coordinator, the storage and this host: what works, and what must be fixed.

    Each line is `ok`, `fix` with what to do, or `not checked` with the reason. Exits with 1 if
    something must be fixed. Writes 64 MiB to the folder of checkpoints and a small object to each
    bucket in the settings, and deletes them.
    """
    settings = load_process({})
    first, ports = coordinator_checks(settings, url)
    checks = [
        *first,
        *file_checks(settings),
        *port_checks(settings, ports),
        *storage_checks(settings),
        *host_checks(settings),
        *gpu_checks(),
    ]
    if as_json:
        print_json([msgspec.json.encode(check) for check in checks])
    else:
        show(checks)
    sys.exit(FAILED if any(check.status == "fix" for check in checks) else DONE)


def show(checks: list[Check]) -> None:
    """Print one line for each check, with what to do below it."""
    out, width = console(), max(len(check.name) for check in checks)
    for check in checks:
        status = (f"{check.status:<11}  ", STYLES[check.status])
        text = Text.assemble(status, f"{plain(check.name):<{width}}  {plain(check.found)}")
        out.print(text, soft_wrap=True)
        if check.fix:
            out.print(Text(f"{'':13}→ {plain(check.fix)}", style="yellow"), soft_wrap=True)
    wrong = sum(check.status == "fix" for check in checks)
    skipped = sum(check.status == "not checked" for check in checks)
    result = f"{counted(wrong, 'thing')} to fix" if wrong else "nothing to fix"
    out.print(f"{result}, {skipped} not checked" if skipped else result, style="bold")
