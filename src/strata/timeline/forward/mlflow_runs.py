"""Runs of an MLflow server, over its REST API.

The API is used without MLflow's client: `mlflow-skinny` installs 16 packages for seven requests,
and its own retries would send a batch again that the server has already stored. Here, a batch whose
answer was lost is compared with what the server has.

A run is found by its tag `strata.key`, so it is created once. Images, texts and histograms are
artifacts, which need a server that stores them itself (`mlflow server` does by default).
"""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from strata.core.workers.worker_facts import MediaLogged
from strata.errors import InvalidArgument, Unavailable
from strata.timeline.forward.forwarding import Progress, Source
from strata.timeline.forward.logged_pages import LoggedItem, LoggedPage

METRICS, PARAMS = 1000, 100
"""The most of each in one request; MLflow's limits."""

PARAM_CHARACTERS = 6000
TIMEOUT_S = 30.0
LONGEST_WAIT_S = 60.0
HIGHEST = 1.7976931348623157e308
"""MLflow stores infinity as this."""

ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. :/")
STATUS = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
ARTIFACTS = "mlflow-artifacts:"

Metric = dict[str, Any]
Result = TypeVar("Result")


class ServerUnavailable(Exception):
    """The server did not answer, or not now."""


class MlflowRuns:
    """Sends the items of a task to an experiment of an MLflow server."""

    kept_batches = 1

    def __init__(
        self,
        url: str,
        experiment: str,
        source: Source,
        say: Callable[[str], None],
        token: str = "",
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument(
                f"{url!r} is not the URL of an MLflow server",
                hint="start one with `mlflow server`, then --out http://127.0.0.1:5000",
            )
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        self.url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self.run_id = ""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if parts.username:
            pair = f"{parts.username}:{parts.password or ''}".encode()
            self._headers = {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        self._experiment = experiment
        self._source = source
        self._say = say
        self._wait = wait
        self._params: dict[str, str] = {}
        self._artifacts = ""

    def begin(self, page: LoggedPage, progress: Progress) -> None:
        """Find or create the run."""
        key = f"{progress.key}-{progress.line}"
        experiment = self._with_retry(self._experiment_id)
        info = self._with_retry(lambda: self._run(experiment, key, page, progress))
        self.run_id = info["run_id"]
        uri = info.get("artifact_uri", "")
        self._artifacts = uri.removeprefix(ARTIFACTS).lstrip("/") if ARTIFACTS in uri else ""
        self._params = {}
        self._describe(page)

    def open(self, page: LoggedPage) -> None:
        """Do nothing: `begin` has prepared all."""

    def missing(self, items: Sequence[LoggedItem], progress: Progress) -> list[LoggedItem]:
        """Items of which the server lacks a value; artifacts are replaced by themselves."""
        lacking = self._lacking([metric for item in items for metric in metrics_of(item)])
        wanted = {identity(metric) for metric in lacking}
        return [
            item
            for item in items
            if item.media is not None or any(identity(e) in wanted for e in metrics_of(item))
        ]

    def send(self, items: Sequence[LoggedItem], page: LoggedPage) -> None:
        """Send items; values that the server has already are left out after a lost answer."""
        self._describe(page)
        metrics = [metric for item in items for metric in metrics_of(item)]
        for first in range(0, len(metrics), METRICS):
            self._log(metrics[first : first + METRICS])
        for item in items:
            if item.media is not None:
                self._upload(item)

    def supersede(self, step: int, page: LoggedPage) -> None:
        """Tag the run and end it."""
        tag = {"key": "strata.undone_from_step", "value": str(step)}
        self._with_retry(lambda: self._post("runs/set-tag", {"run_id": self.run_id, **tag}))
        self._update("KILLED")

    def end(self, page: LoggedPage | None) -> None:
        """Set the status of the run."""
        if page is not None:
            self._update(STATUS.get(page.state, "FINISHED"))

    def _update(self, status: str) -> None:
        body = {"run_id": self.run_id, "status": status, "end_time": int(time.time() * 1000)}
        self._with_retry(lambda: self._post("runs/update", body))

    def _experiment_id(self) -> str:
        name = {"experiment_name": self._experiment}
        found = self._get("experiments/get-by-name", name, absent=True)
        if found is None:
            return str(
                self._post("experiments/create", {"name": self._experiment})["experiment_id"]
            )
        return str(found["experiment"]["experiment_id"])

    def _run(
        self, experiment: str, key: str, page: LoggedPage, progress: Progress
    ) -> dict[str, Any]:
        """The run with a key; it is searched for before each attempt to create it."""
        wanted = {"experiment_ids": [experiment], "filter": f"tags.`strata.key` = '{key}'"}
        for found in self._post("runs/search", {**wanted, "max_results": 1}).get("runs", []):
            return dict(found["info"])
        tags = {
            "strata.key": key,
            "strata.task": page.task,
            "strata.rank": str(self._source.rank),
            "strata.line": str(progress.line),
            "strata.parent": page.parent,
        }
        body = {
            "experiment_id": experiment,
            "run_name": page.task if not progress.line else f"{page.task} ({progress.line + 1})",
            "start_time": int(page.submitted_ms),
            "tags": [{"key": name, "value": value} for name, value in tags.items() if value],
        }
        return dict(self._post("runs/create", body)["run"]["info"])

    def _describe(self, page: LoggedPage) -> None:
        """Send parameters; MLflow keeps the first value of each, so later ones become tags."""
        params, tags = [], []
        for name, value in page.config.items():
            entry = {"key": key_of(name), "value": str(value)[:PARAM_CHARACTERS]}
            before = self._params.get(name)
            if before is None:
                params.append(entry)
            elif before != entry["value"]:
                tags.append({**entry, "key": f"strata.changed.{entry['key']}"})
            self._params[name] = entry["value"]
        for first in range(0, max(len(params), len(tags)), PARAMS):
            body = {
                "run_id": self.run_id,
                "params": params[first : first + PARAMS],
                "tags": tags[first : first + PARAMS],
            }
            self._with_retry(lambda body=body: self._post("runs/log-batch", body))  # type: ignore[misc]

    def _log(self, metrics: list[Metric]) -> None:
        """Send metrics; after a lost answer, only those that the server lacks."""
        waited = 1.0
        while metrics:
            try:
                self._post("runs/log-batch", {"run_id": self.run_id, "metrics": metrics})
                return
            except ServerUnavailable as error:
                self._pause(error, waited)
                waited = min(2 * waited, LONGEST_WAIT_S)
                metrics = self._lacking(metrics)

    def _lacking(self, metrics: list[Metric]) -> list[Metric]:
        """Those of some metrics that the server does not have."""
        there: set[tuple[Any, ...]] = set()
        for key in {metric["key"] for metric in metrics}:
            token = ""
            while True:
                asked = {"run_id": self.run_id, "metric_key": key, "max_results": "25000"}
                asked |= {"page_token": token} if token else {}
                answer = self._with_retry(
                    lambda asked=asked: self._get("metrics/get-history", asked)  # type: ignore[misc]
                )
                there |= {identity(metric) for metric in answer.get("metrics", [])}
                if not (token := answer.get("next_page_token", "")):
                    break
        return [metric for metric in metrics if identity(metric) not in there]

    def _upload(self, item: LoggedItem) -> None:
        """Store an image, text or histogram as an artifact, under a name made of its reference."""
        if not self._artifacts:
            return
        media = self._source.media(item)
        name, data = artifact_of(media, item)
        path = f"{self._artifacts}/{name}"
        url = f"{self.url}/api/2.0/mlflow-artifacts/artifacts/{quote(path)}"
        self._with_retry(lambda: self._request("PUT", url, data))

    def _with_retry(self, action: Callable[[], Result]) -> Result:
        """Repeat a harmless request until the server answers."""
        waited = 1.0
        while True:
            try:
                return action()
            except ServerUnavailable as error:
                self._pause(error, waited)
                waited = min(2 * waited, LONGEST_WAIT_S)

    def _pause(self, error: ServerUnavailable, wait_s: float) -> None:
        self._say(f"{self.url} does not answer ({error}); trying again in {wait_s:.0f} s")
        self._wait(wait_s)

    def _get(self, path: str, params: dict[str, str], *, absent: bool = False) -> Any:
        url = f"{self.url}/api/2.0/mlflow/{path}?{urlencode(params)}"
        return self._request("GET", url, None, absent=absent)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        # Not `json.dumps`: it writes NaN as a word, at which MLflow stops reading without an error.
        return self._request("POST", f"{self.url}/api/2.0/mlflow/{path}", msgspec.json.encode(body))

    def _request(self, method: str, url: str, body: bytes | None, *, absent: bool = False) -> Any:
        kind = "application/octet-stream" if method == "PUT" else "application/json"
        request = urllib.request.Request(
            url, body, {"Content-Type": kind, **self._headers}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            if error.code in (408, 429) or error.code >= 500:
                raise ServerUnavailable(f"status {error.code}") from error
            if absent and error.code == 404:
                return None
            raise Unavailable(
                f"{self.url} refused {urlsplit(url).path}: {said[:300]}",
                hint="check the URL and the permissions of the token",
            ) from error
        except (OSError, ValueError) as error:
            raise ServerUnavailable(str(getattr(error, "reason", error))) from error


def key_of(name: str) -> str:
    """A name as MLflow allows it; other characters as their code, so that names stay different."""
    plain = "".join(each if each in ALLOWED else f"_{ord(each):x}_" for each in name)
    return plain[:250].strip("/.") or "_"


def metrics_of(item: LoggedItem) -> list[Metric]:
    """The values of an item as MLflow's metrics; those that are not finite are texts."""
    return [
        {"key": key_of(name), "value": value, "timestamp": int(item.time_ms), "step": item.step}
        for name, value in item.values.items()
    ]


def identity(metric: Metric) -> tuple[Any, ...]:
    """What MLflow tells metrics of a run apart by; integers are texts in its answers."""
    value = float(metric["value"])
    if value != value:
        return metric["key"], int(metric["step"]), int(metric["timestamp"]), "NaN"
    value = max(-HIGHEST, min(HIGHEST, value))
    return metric["key"], int(metric["step"]), int(metric["timestamp"]), value


def artifact_of(media: MediaLogged, item: LoggedItem) -> tuple[str, bytes]:
    """The path and content of an artifact."""
    ref = key_of(item.ref).replace("/", ".")
    key = key_of(media.name).replace("/", "#")
    name = f"{key}+step+{item.step}+timestamp+{int(item.time_ms)}"
    if media.media == "image":
        # The name that MLflow's `log_image` gives, so that its page shows images by step.
        return f"images/{name}+{ref}.{media.format}", media.data
    if media.media == "text":
        return f"texts/{name}+{ref}.txt", media.text.encode()
    shown = {"edges": media.edges, "counts": media.counts, "not_finite": media.not_finite}
    return f"histograms/{name}+{ref}.json", msgspec.json.encode(shown)
