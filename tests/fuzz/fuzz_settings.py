"""`strata.toml`, `.env` and the environment: settings, or an error that names the file."""

import tempfile
from pathlib import Path

from strata import config
from strata.settings_file import run_defaults
from tests.fuzz.targets import refused_naming

FILE = "strata.toml"
OPTIONS = ("workers", "policy", "env", "config", "name")


def seeds() -> list[bytes]:
    return [
        b'data_dir = "here"\nheartbeat_interval_s = 1.5\nhttp_port = 3000\n\n'
        b'[run]\nworkers = 4\nenv = {A = "b"}\nconfig = {lr = 0.1}\n',
        b"STRATA_HTTP_PORT=3000\nexport STRATA_DATA_DIR='x'\n# no\nSTRATA_TOKEN=\"a\"\n",
        b'[[run]]\nx = 1979-05-27T07:32:00Z\n"run" = [1, 2]\n',
    ]


def check(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="strata-fuzz-") as made:
        path = Path(made, FILE)
        path.write_bytes(data)
        with refused_naming():
            config.load({}, {}, path)
        with refused_naming(FILE):
            run_defaults(path, OPTIONS)
        with refused_naming():
            config.load({}, config.variables_in(path), None)
