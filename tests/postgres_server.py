"""A real PostgreSQL server for tests, on loopback, with a folder and a port of its own."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tests.storage.server import free_ports

READY_S = 60.0
NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs; Debian keeps them out of PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(installed[-1]) if installed else None)
    if found is None:
        pytest.fail(
            f"this test needs {name}: install it (Debian: apt-get install postgresql), or run make "
            "test where it may use apt-get",
            pytrace=False,
        )
    return found


class PostgresServer:
    """A server that can be killed and started again, with the same port and data."""

    def __init__(self, folder: Path):
        # The server refuses to run as root.
        self._user = NOBODY if os.geteuid() == 0 else ()
        self._folder = folder
        [self.port] = free_ports(1)
        self.url = f"postgresql://strata@127.0.0.1:{self.port}/postgres"
        if self._user:
            shutil.chown(folder, "nobody", "nogroup")
        self._data = folder / "data"
        made = [program("initdb"), "--auth=trust", "--username=strata", "--encoding=UTF8", "-D"]
        subprocess.run(
            [*self._user, *made, self._data], check=True, capture_output=True, cwd=folder
        )
        self.process = None
        self.start()

    def start(self):
        """Returns when the server answers."""
        options = ("-h", "127.0.0.1", "-p", str(self.port), "-k", str(self._folder))
        with (self._folder / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._user, program("postgres"), "-D", self._data, *options],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self.ask("SELECT 1")
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self._folder / "postgres.log").read_text()
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.05)

    def stop(self, how=signal.SIGINT):
        """End the server: SIGINT breaks its connections, SIGQUIT ends it without a checkpoint."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(READY_S)

    def ask(self, sql):
        with psycopg.connect(self.url, autocommit=True) as db:
            cursor = db.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def empty(self):
        """The address of the database, without a store in it."""
        self.ask("DROP SCHEMA IF EXISTS strata CASCADE")
        return self.url

    def cut(self):
        """Break all connections."""
        with suppress(psycopg.OperationalError):
            self.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = 'postgres' AND pid <> pg_backend_pid()"
            )


@contextmanager
def serving():
    """A server in memory where that is possible: what a power cut leaves is not tested, and a
    database is a thousand files."""
    shared = Path("/dev/shm")
    where = shared if shared.is_dir() else None
    # Not below pytest's folder, which only its user may enter: the server runs as another one.
    with tempfile.TemporaryDirectory(prefix="strata-postgres-", dir=where) as folder:
        server = PostgresServer(Path(folder))
        try:
            yield server
        finally:
            server.stop()
