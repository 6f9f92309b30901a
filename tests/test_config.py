"""Settings: precedence of the sources, refused values and their messages, hidden secrets."""

import io
import re
from pathlib import Path

import msgspec
import pytest
import rich
from rich.console import Console

from strata import config
from strata.config import FIELDS, Settings, load
from strata.errors import SettingError


@pytest.fixture
def toml(tmp_path):
    def write(text):
        file = tmp_path / "strata.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_defaults():
    settings = load({}, {}, None)
    assert settings == Settings()
    assert (settings.grpc_host, settings.grpc_port) == ("127.0.0.1", 50051)
    assert (settings.http_host, settings.http_port) == ("127.0.0.1", 3000)
    assert (settings.heartbeat_interval_s, settings.heartbeat_timeout_s) == (5.0, 30.0)
    assert (settings.barrier_timeout_s, settings.keep_count) == (300.0, 5)
    assert settings.max_workers == 10_000


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_every_default_is_valid(field):
    assert config.checked(field.name, field.default, "as default") == field.default


PAGE = (Path(__file__).parents[1] / "docs" / "SETTINGS.md").read_text("utf-8")


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_settings_page_lists_every_setting_with_its_default(field):
    if field.name in config.IDENTITY or field.name == "gpu_count":
        assert f"`{field.name}`" in PAGE
        return
    (row,) = [line for line in PAGE.splitlines() if re.match(rf"\|[^|]*`{field.name}`", line)]
    names, defaults = (re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:3])
    shown = dict(zip(names, defaults, strict=True))[field.name] if defaults else ""
    meant = msgspec.json.encode(field.default).decode().strip('"').removesuffix(".0")
    assert shown == meant.replace("null", "")


def test_flags_win_over_environment_and_environment_over_file(toml):
    file = toml("grpc_port = 1\nhttp_port = 1\nkeep_count = 1\n")
    environ = {"STRATA_HTTP_PORT": "2", "STRATA_KEEP_COUNT": "2"}
    settings = load({"keep_count": 3, "max_workers": None}, environ, file)
    assert (settings.grpc_port, settings.http_port, settings.keep_count) == (1, 2, 3)
    assert settings.max_workers == 10_000


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_can_be_set_by_environment(name):
    texts = {
        "storage_backend": "s3",
        "alert_notify_from": "error",
        "alert_goodput_below": "0.5",
        "alert_slow_share": "0.5",
        "alert_smtp_security": "tls",
        "alert_webhook_format": "slack",
        "alert_worker_losses": "3",
        "alert_checkpoint_failures": "3",
        "log_format": "json",
        "demo_mode": "true",
        "lease_s": "30",
        "archive_runs": "false",
        "continue_ended": "true",
        "aws_instance_role": "true",
        "capture_level": "error",
        "capture_output": "false",
        "checkpoint_adaptive": "false",
        "checkpoint_recycle": "false",
        "checkpoint_when_busy": "wait",
        "exclude_on_gpu_faults": "false",
        "self_test": "true",
        "warm_starts": "false",
    }
    text = texts.get(name, "10")
    value = getattr(load({}, {f"STRATA_{name.upper()}": text}, None), name)
    assert str(value).lower() in (text, f"{text}.0")
    assert value != FIELDS[name].default


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("COORDINATOR_ADDR", "a:1", "coordinator_addr", "a:1"),
        ("COORDINATOR_URL", "http://a:1", "coordinator_addr", "http://a:1"),
        ("WORKER_ID", "w1", "worker_id", "w1"),
        ("RANK", "0", "rank", 0),
        ("WORLD_SIZE", "8", "world_size", 8),
        ("GPU_COUNT", "0", "gpu_count", 0),
        ("STORAGE_BACKEND", "s3", "storage_backend", "s3"),
        ("CHECKPOINT_DIR", "c", "checkpoint_dir", "c"),
        ("CHECKPOINT_BUCKET", "b", "checkpoint_bucket", "b"),
        ("AWS_REGION", "r", "aws_region", "r"),
        ("AWS_ACCESS_KEY_ID", "k", "aws_access_key_id", "k"),
        ("AWS_SECRET_ACCESS_KEY", "s", "aws_secret_access_key", "s"),
        ("AWS_ENDPOINT_URL", "u", "aws_endpoint_url", "u"),
        ("STRATA_LOG", "debug", "log_filter", "debug"),
        ("RUST_LOG", "debug", "log_filter", "debug"),
        ("LOG_FORMAT", "json", "log_format", "json"),
        ("DEMO_MODE", "1", "demo_mode", True),
        ("DEMO_MODE", "0", "demo_mode", False),
        ("VITE_API_URL", "/strata/api", "page_api_url", "/strata/api"),
    ],
)
def test_variables_shared_with_other_tools_are_read(variable, text, name, value):
    assert getattr(load({}, {variable: text}, None), name) == value


def test_strata_variable_wins_over_shared_names():
    assert load({}, {"RUST_LOG": "warn", "STRATA_LOG": "debug"}, None).log_filter == "debug"
    assert load({}, {"RANK": "1", "STRATA_RANK": "2"}, None).rank == 2
    assert load({}, {"COORDINATOR_URL": "b", "COORDINATOR_ADDR": "a"}, None).coordinator_addr == "a"


def test_empty_variable_counts_as_not_set():
    assert load({}, {"RANK": "", "STRATA_GRPC_PORT": ""}, None) == Settings()


def test_unknown_setting_error_suggests_the_closest_name(toml):
    for flags, environ, file, closest in [
        ({}, {}, toml("grcp_port = 1"), "grpc_port"),
        ({}, {"STRATA_HEARTBEAT_TIMEOUT": "1"}, None, "STRATA_HEARTBEAT_TIMEOUT_S"),
        ({"keepcount": 1}, {}, None, "keep_count"),
    ]:
        with pytest.raises(SettingError) as caught:
            load(flags, environ, file)
        assert caught.value.hint == f"did you mean {closest}?"


def test_unrelated_variables_are_ignored():
    assert load({}, {"PATH": "/bin", "STRATAGEM": "1"}, None) == Settings()


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        ({"STRATA_GRPC_PORT": "abc"}, ["grpc_port", "'abc'", "STRATA_GRPC_PORT", "`int`"]),
        ({"STRATA_GRPC_PORT": "70000"}, ["grpc_port", "'70000'", "<= 65535"]),
        ({"STRATA_BARRIER_TIMEOUT_S": "nan"}, ["barrier_timeout_s", "'nan'", "> 0"]),
        ({"STRATA_BARRIER_TIMEOUT_S": "inf"}, ["barrier_timeout_s", "'inf'", "<= 31536000"]),
        ({"STRATA_BARRIER_TIMEOUT_S": "0"}, ["barrier_timeout_s", "'0'", "> 0"]),
        ({"STORAGE_BACKEND": "ftp"}, ["storage_backend", "'ftp'", "STORAGE_BACKEND"]),
        ({"DEMO_MODE": "maybe"}, ["demo_mode", "'maybe'", "`bool`"]),
        ({"RANK": "-1"}, ["rank", "'-1'", ">= 0"]),
    ],
)
def test_wrong_value_error_names_field_value_and_expected_type(environ, parts):
    with pytest.raises(SettingError) as caught:
        load({}, environ, None)
    assert [part for part in parts if part not in str(caught.value)] == []


def test_error_in_the_file_names_its_line(toml):
    text = "# settings\ngrpc_port = 1\n\n[run]\nworkers = 2\n"
    with pytest.raises(
        SettingError, match=r"unknown setting 'keep_cuont' in .*strata\.toml, line 3"
    ):
        load({}, {}, toml("# settings\n\nkeep_cuont = 3\n"))
    with pytest.raises(SettingError, match=r"grpc_port is '1' in .*strata\.toml, line 2"):
        load({}, {}, toml(text.replace("= 1", "= '1'")))
    with pytest.raises(
        SettingError, match=r"unknown setting 'runs' in .*strata\.toml, line 4"
    ) as error:
        load({}, {}, toml(text.replace("[run]", "[runs]")))
    assert error.value.hint
    assert load({}, {}, toml(text)).grpc_port == 1, "the table [run] is no setting"
    with pytest.raises(SettingError, match=r"run is not a table in .*line 1"):
        load({}, {}, toml("run = 2\n"))


def test_values_in_the_file_must_have_the_right_type(toml):
    with pytest.raises(SettingError, match=r"grpc_port is '1' in .*strata\.toml"):
        load({}, {}, toml('grpc_port = "1"'))
    assert load({}, {}, toml("barrier_timeout_s = 60")).barrier_timeout_s == 60.0


def test_unreadable_file_is_an_error(toml, tmp_path):
    with pytest.raises(SettingError, match=r"not valid TOML: .*line 1"):
        load({}, {}, toml("= 1"))
    with pytest.raises(SettingError, match=r"cannot read .*missing"):
        load({}, {}, tmp_path / "missing.toml")


def test_heartbeat_timeout_must_exceed_the_interval():
    with pytest.raises(SettingError, match="heartbeat_timeout_s"):
        load({"heartbeat_timeout_s": 5.0}, {}, None)


def test_load_process_reads_working_folder_and_environment(toml, tmp_path, monkeypatch):
    toml("grpc_port = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRATA_HTTP_PORT", "2")
    settings = config.load_process({})
    assert (settings.grpc_port, settings.http_port) == (1, 2)


def test_dotenv_file_is_read_and_the_environment_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [
        "# credentials",
        "export AWS_ACCESS_KEY_ID='key'",
        'AWS_SECRET_ACCESS_KEY = "a=b"',
        "STRATA_GRPC_PORT=4000",
        "STRATA_HTTP_PORT=4001",
        "not a variable",
        "ANOTHER=of others",
    ]
    (tmp_path / ".env").write_text("\n".join(lines))
    monkeypatch.setenv("STRATA_HTTP_PORT", "5001")
    settings = config.load_process({})
    assert (settings.aws_access_key_id, settings.aws_secret_access_key) == ("key", "a=b")
    assert (settings.grpc_port, settings.http_port) == (4000, 5001)


def test_dotenv_file_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"\.env cannot be read"):
        config.load_process({})


def test_secrets_are_not_shown():
    settings = Settings(token="hush", aws_secret_access_key="hush")
    screen = io.StringIO()
    rich.print(settings, file=screen)
    Console(file=screen).print({"settings": settings})
    assert "hush" not in f"{settings} {settings!r} {screen.getvalue()}"
    assert "token='***'" in repr(settings)
    with pytest.raises(SettingError) as caught:
        load({"token": ["hush"]}, {}, None)
    assert "hush" not in str(caught.value)


def test_settings_are_immutable():
    with pytest.raises(AttributeError, match="immutable"):
        Settings().grpc_port = 1
    assert msgspec.structs.replace(Settings(), grpc_port=1).grpc_port == 1
