"""Guards what is in deploy/ as far as that goes without an engine: it parses, passes the validators
of its kind, and names settings, flags, ports, files and secrets that exist."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from strata.config import VARIABLES, Settings
from tests.cli.conftest import MAIN
from tests.programs import program

pytestmark = pytest.mark.slow
DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OBJECTS = [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text("utf-8"))]
KNOWN = {variable for names in VARIABLES.values() for variable in names}
PORTS = {Settings().grpc_port, Settings().http_port}
BIN = Path(sys.executable).parent


@cache
def flags_of(verb):
    told = subprocess.run([*MAIN, verb, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"--[a-z-]+", told.stdout))


def containers():
    """The containers of the manifests, with the pod that each is in."""
    for each in OBJECTS:
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            yield from ((pod, container) for container in pod["containers"])


def commands():
    """Every command line of `strata` that is written down."""
    services = COMPOSE["services"]
    yield from (services[name]["command"] for name in ("coordinator", "worker"))
    yield from (container["args"] for _, container in containers())
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    yield json.loads(re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)[1])


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_commands_use_verbs_and_flags_that_exist(command):
    verb, *rest = command
    assert {word for word in rest if word.startswith("--")} <= flags_of(verb)


def test_the_batch_script_is_valid_and_uses_what_exists():
    text = (DEPLOY / "slurm.sbatch").read_text("utf-8")
    subprocess.run(["bash", "-n", str(DEPLOY / "slurm.sbatch")], check=True)
    assert "--signal=B:TERM@" in text
    assert "scontrol requeue" in text
    for verb, words in re.findall(r"\bstrata (up|agent|submit|status|tasks) (.*)", text):
        used = set(re.findall(r"(?<!\S)--[a-z-]+", words.split("|")[0]))
        assert used <= flags_of(verb), verb
    exported = re.search(r"^export (.*)$", text, re.MULTILINE)[1]
    assert set(re.findall(r"\b([A-Z_]+)(?==| |$)", exported)) - {"HOST", "STATE"} <= KNOWN


def test_variables_are_settings():
    told = [set(service.get("environment", {})) for service in COMPOSE["services"].values()]
    told += [{each["name"] for each in container["env"]} for _, container in containers()]
    assert set().union(*told) <= KNOWN
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert set(re.findall(r"\b(STRATA_[A-Z_]+)=", dockerfile)) <= KNOWN


def test_ports_are_the_defaults():
    published = COMPOSE["services"]["coordinator"]["ports"]
    assert {int(each.rsplit(":", 1)[1]) for each in published} == PORTS
    [service] = [each for each in OBJECTS if each["kind"] == "Service"]
    assert {each["port"] for each in service["spec"]["ports"]} == PORTS
    exposed = re.search(r"^EXPOSE (.*)$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert set(map(int, exposed[1].split())) == PORTS


def test_services_name_each_other_and_files_that_exist():
    services = COMPOSE["services"]
    for name, service in services.items():
        assert "image" in service, name
        assert set(service.get("depends_on", ())) <= set(services), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"]), name
    build = services["coordinator"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_what_the_image_copies_exists():
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    for words in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (DEPLOY.parent / source).exists(), source


def test_the_keys_of_the_storage_are_those_that_are_told():
    [identity] = json.loads((DEPLOY / "seaweedfs/s3.json").read_text("utf-8"))["identities"]
    told = COMPOSE["services"]["worker"]["environment"]
    [keys] = identity["credentials"]
    assert keys == {
        "accessKey": told["AWS_ACCESS_KEY_ID"],
        "secretKey": told["AWS_SECRET_ACCESS_KEY"],
    }
    bucket = " ".join(COMPOSE["services"]["bucket"]["command"])
    assert f"-name {told['CHECKPOINT_BUCKET']}" in bucket


def test_workers_have_longer_than_their_grace_to_end():
    grace_s = Settings().stop_grace_s
    assert int(COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")) > grace_s
    pods = [pod for pod, container in containers() if container["args"][0] == "agent"]
    assert all(pod["terminationGracePeriodSeconds"] > grace_s for pod in pods)
    assert pods


def test_kubernetes_knows_every_field():
    tool = [str(BIN / "kubernetes-validate"), "--strict", "--quiet"]
    subprocess.run([*tool, *map(str, MANIFESTS)], check=True)


def test_the_dockerfile_has_no_faults():
    subprocess.run([str(BIN / "hadolint"), str(DEPLOY / "Dockerfile")], check=True)


def test_prometheus_understands_its_configuration():
    check = [program("promtool"), "check", "config", "--syntax-only"]
    subprocess.run([*check, str(DEPLOY / "prometheus/compose.yml")], check=True)
    config = yaml.safe_load((DEPLOY / "prometheus/compose.yml").read_text("utf-8"))
    [scraped] = config["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"coordinator:{Settings().http_port}"]}]
    [secret] = COMPOSE["services"]["prometheus"]["secrets"]
    assert scraped["authorization"]["credentials_file"] == f"/run/secrets/{secret}"


def test_grafana_finds_the_dashboard_and_its_source():
    mounts = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["grafana"]["volumes"])
    provisioning = DEPLOY / "grafana/provisioning"
    [provider] = yaml.safe_load((provisioning / "dashboards/strata.yml").read_text())["providers"]
    assert mounts["./grafana/strata.json"].startswith(provider["options"]["path"])
    [source] = yaml.safe_load((provisioning / "datasources/strata.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
