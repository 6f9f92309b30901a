"""`python -m strata.sdk.torchrun script.py args`: a script that was written for torchrun.

The script knows nothing of Strata. This process joins in its place: it beats, enters each
generation, and runs the script as its child with the variables that torchrun would set. The members
tell each other where they are through rank 0, which finds a free port for every generation, so that
`init_process_group` never meets what is left of the one before.

A script that fails is a lost worker. Whenever the membership changes the script is ended on every
worker and started again with the new ranks; it goes on from a checkpoint of its own, as it would
under torchrun. One that ends well waits for the others: until all have, a failure elsewhere
still begins again with everyone.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import psutil
from msgspec import Struct

from strata.config import inherited
from strata.errors import DeadlineExceeded
from strata.sdk.cards import seen_as, visible_cards
from strata.sdk.channel import parse_address
from strata.sdk.enrolment import settings_for
from strata.sdk.meeting import own_host
from strata.sdk.run import Run, join
from strata.sdk.signals import GenerationChanged, StopRequested

POLL_S = 0.02
GRACE_S = 5.0
"""From SIGTERM to SIGKILL, for a script whose generation is over: nothing it does counts."""

CULPRIT_S = 1.0
"""For the news that another worker was lost, which makes scripts fail in their collectives."""

WORDS_BYTES = 500
STOPPED_CODE = 143


class Seat(Struct, frozen=True):
    """Where a member is: its host as others reach it, the host's name, a free port there, and the
    cards that are its own."""

    host: str
    machine: str
    port: int
    cards: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """As told to the others."""
        return " ".join([self.host, self.machine, str(self.port), *self.cards])

    @classmethod
    def from_words(cls, words: str) -> "Seat":
        host, machine, port, *cards = words.split(" ")
        return cls(host, machine, int(port), tuple(cards))


def main() -> None:
    """Joins, and runs the script until it has ended well or this worker is lost."""
    command = [sys.executable, *sys.argv[1:]]
    coordinator = parse_address(settings_for().coordinator_addr)
    host = own_host(coordinator.host, coordinator.port)
    code = STOPPED_CODE
    with join() as run:
        code = follow(run, command, host)
        if code and not run.stop_requested:
            run.leave("failed", f"the script ended with {how(code)}")
    sys.exit(code)


def follow(run: Run, command: Sequence[str], host: str) -> int:
    """Runs the script in one generation after the other; the code that it ended with."""
    while True:
        try:
            mine = Seat(host, socket.gethostname(), free_port(host), tuple(visible_cards()))
            script = start(run, command, gather(run, mine))
            try:
                code = wait(run, script)
            finally:
                end(script)
            if code == 0:
                wait_for_others(run)
            elif code > 0:
                notice_the_culprit(run)
            return code
        except GenerationChanged:
            run.sync()


def gather(run: Run, mine: Seat) -> list[Seat]:
    """Where every member is, by rank; they tell each other in an exchange of the generation."""
    told = np.zeros((run.world_size, WORDS_BYTES))
    words = mine.words.encode()
    told[run.rank, : len(words)] = list(words)
    heard = np.rint(run.average(told) * run.world_size).astype(np.uint8)
    return [Seat.from_words(row.tobytes().rstrip(b"\0").decode()) for row in heard]


def free_port(host: str) -> int:
    """A port on which no process listens now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port: int = server.getsockname()[1]
        return port


def start(run: Run, command: Sequence[str], seats: Sequence[Seat]) -> subprocess.Popen[bytes]:
    """Starts the script with its place in the generation."""
    told = variables(run.rank, seats) | {
        "TORCHELASTIC_RUN_ID": run.task_id,
        "TORCHELASTIC_RESTART_COUNT": str(run.generation - 1),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "STRATA_WRAPPER": "torchrun",
    }
    script = subprocess.Popen(command, env=inherited() | told)
    run.measure(script.pid)
    return script


def variables(rank: int, seats: Sequence[Seat]) -> dict[str, str]:
    """What a script expects of torchrun: of the cards on its host `LOCAL_RANK` is its own."""
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
    """Waits for the script's end; a stop is passed on to it, so that it may save."""
    told = False
    while True:
        try:
            return script.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if run.stop_requested and not told:
                told = True
                script.terminate()
            elif run.membership_changed and not run.stop_requested:
                raise GenerationChanged("the membership changed") from None


def notice_the_culprit(run: Run) -> None:
    """A script that fails because another one was lost did nothing wrong: all begin again."""
    deadline_s = time.monotonic() + CULPRIT_S
    while time.monotonic() < deadline_s and not run.stop_requested:
        if run.membership_changed:
            raise GenerationChanged("another worker was lost")
        time.sleep(POLL_S)


def wait_for_others(run: Run) -> None:
    """Waits until the script has ended well everywhere."""
    while not run.stop_requested:
        try:
            run.barrier("the script has ended")
            return
        except DeadlineExceeded:
            continue
        except StopRequested:
            return


def end(script: subprocess.Popen[bytes]) -> None:
    """Ends the script and what it started, if they still run."""
    try:
        root = psutil.Process(script.pid)
        family = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        family = []
    for process in family:
        _signal(process.terminate)
    _, deaf = psutil.wait_procs(family, GRACE_S)
    for process in deaf:
        _signal(process.kill)
    script.wait()


def _signal(send: Callable[[], None]) -> None:
    try:
        send()
    except psutil.NoSuchProcess:
        return


def how(code: int) -> str:
    """An exit code in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    main()
