"""`python -m strata.sdk.torchrun script.py args`: run a script that was written for torchrun.

The script does not use Strata. This process joins in its place: it sends heartbeats, enters each
generation, and runs the script as its child with the variables that torchrun would set. The members
exchange their addresses through rank 0. Rank 0 finds a free port for every generation, so that
`init_process_group` never connects to processes of the generation before.

A script that fails is a lost worker. When the membership changes, the script is ended on every
worker and started again with the new ranks; it resumes from its own checkpoint, as under torchrun.
A script that succeeds waits for the others: until all have succeeded, a failure of one restarts
all.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec
import psutil
from msgspec import Struct

from strata.config import inherited
from strata.errors import DeadlineExceeded
from strata.sdk.interrupts import GenerationChanged, StopRequested
from strata.sdk.record.gpu_cards import seen_as, visible_cards
from strata.sdk.run import Run, join
from strata.sdk.session.channel import own_host, parse_addresses
from strata.sdk.session.registration import settings_for

POLL_S = 0.02
GRACE_S = 5.0
"""From SIGTERM to SIGKILL, for a script whose generation is over."""

PEER_FAILURE_S = 1.0
"""How long a failed script waits for the loss of another worker, which fails all collectives."""

STOPPED_CODE = 143


class Seat(Struct, frozen=True):
    """A member's host address and name, a free port there, and the GPUs that the member may use."""

    host: str
    machine: str
    port: int
    cards: tuple[str, ...] = ()


def main() -> None:
    """Join, and run the script until it succeeds or this worker is lost."""
    command = [sys.executable, *sys.argv[1:]]
    coordinator = parse_addresses(settings_for().coordinator_addr)[0]
    host = own_host(coordinator.host, coordinator.port)
    code = STOPPED_CODE
    with join() as run:
        code = follow(run, command, host)
        if code and not run.stop_requested:
            run.leave("failed", f"the script ended with {how(code)}")
    sys.exit(code)


def follow(run: Run, command: Sequence[str], host: str) -> int:
    """Run the script in one generation after the other; returns its last exit code."""
    while True:
        try:
            own = Seat(
                host=host,
                machine=socket.gethostname(),
                port=free_port(host),
                cards=tuple(visible_cards()),
            )
            script = start(run, command, gather(run, own))
            try:
                code = wait(run, script)
            finally:
                end(script)
            if code == 0:
                wait_for_others(run)
            elif code > 0:
                wait_for_peer_failure(run)
            return code
        except GenerationChanged:
            run.sync()


def gather(run: Run, own: Seat) -> list[Seat]:
    """The seats of all members, in rank order."""
    encoded = msgspec.json.encode(own).decode()
    seats = run.together(lambda exchange: exchange.everyone(encoded))
    return [msgspec.json.decode(seat, type=Seat) for seat in seats]


def free_port(host: str) -> int:
    """A port on which no process is listening."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port: int = server.getsockname()[1]
        return port


def start(run: Run, command: Sequence[str], seats: Sequence[Seat]) -> subprocess.Popen[bytes]:
    """Start the script with the variables of its rank."""
    environment = variables(run.rank, seats) | {
        "TORCHELASTIC_RUN_ID": run.task_id,
        "TORCHELASTIC_RESTART_COUNT": str(run.generation - 1),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "STRATA_WRAPPER": "torchrun",
    }
    script = subprocess.Popen(command, env=inherited() | environment)
    run.measure(script.pid)
    return script


def variables(rank: int, seats: Sequence[Seat]) -> dict[str, str]:
    """The variables that torchrun sets; GPU `LOCAL_RANK` of the host is this worker's own."""
    machines = [(seat.host, seat.machine) for seat in seats]
    here = machines[rank]
    cards = [seat.cards for seat, machine in zip(seats, machines, strict=True) if machine == here]
    firsts, others = [each[:1] for each in cards], [each[1:] for each in cards]
    return seen_as(list(chain(*firsts, *others))) | {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(seats)),
        "LOCAL_RANK": str(machines[:rank].count(here)),
        "LOCAL_WORLD_SIZE": str(machines.count(here)),
        "GROUP_RANK": str(list(dict.fromkeys(machines)).index(here)),
        "MASTER_ADDR": seats[0].host,
        "MASTER_PORT": str(seats[0].port),
    }


def wait(run: Run, script: subprocess.Popen[bytes]) -> int:
    """Wait for the script's end; a requested stop is passed on as SIGTERM, so that it can save."""
    terminated = False
    while True:
        try:
            return script.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if run.stop_requested and not terminated:
                terminated = True
                script.terminate()
            elif run.membership_changed and not run.stop_requested:
                raise GenerationChanged("the membership changed") from None


def wait_for_peer_failure(run: Run) -> None:
    """Raise `GenerationChanged` if the script failed because another worker was lost."""
    deadline_s = time.monotonic() + PEER_FAILURE_S
    while time.monotonic() < deadline_s and not run.stop_requested:
        if run.membership_changed:
            raise GenerationChanged("another worker was lost")
        time.sleep(POLL_S)


def wait_for_others(run: Run) -> None:
    """Wait until the script has succeeded on every worker."""
    while not run.stop_requested:
        try:
            run.barrier("the script has ended")
            return
        except DeadlineExceeded:
            continue
        except StopRequested:
            return


def end(script: subprocess.Popen[bytes]) -> None:
    """End the script and its child processes, if they still run."""
    try:
        root = psutil.Process(script.pid)
        family = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        family = []
    for process in family:
        _signal(process.terminate)
    _, running = psutil.wait_procs(family, GRACE_S)
    for process in running:
        _signal(process.kill)
    script.wait()


def _signal(send: Callable[[], None]) -> None:
    try:
        send()
    except psutil.NoSuchProcess:
        return


def how(code: int) -> str:
    """An exit code as text."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    main()
