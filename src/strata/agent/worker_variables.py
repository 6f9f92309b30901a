"""The variables by which a worker reaches the coordinator, and with which token.

A worker gets the token of its task, which the coordinator sends with the task, instead of the
agent's. A coordinator that is older than those tokens sends none; then it gets the agent's.
"""

import os
from collections.abc import Mapping

from strata.config import Settings
from strata.wire.v1 import coordinator_pb2 as pb

TOKEN = "STRATA_TOKEN"


def worker_environment(settings: Settings) -> dict[str, str]:
    """The variables by which workers reach the coordinator like their agent."""
    variables = {"COORDINATOR_ADDR": settings.coordinator_addr}
    if settings.token:
        variables[TOKEN] = settings.token
    for name in ("tls_ca", "tls_cert", "tls_client_cert", "tls_client_key"):
        if file := getattr(settings, name):  # a worker may have another working directory
            variables[f"STRATA_{name.upper()}"] = os.path.abspath(file)
    if settings.owner:
        variables["STRATA_OWNER"] = settings.owner
    return variables


def for_task(variables: Mapping[str, str], job: pb.Job) -> dict[str, str]:
    """These variables for the workers of a task."""
    return {**variables, TOKEN: job.worker_token} if job.worker_token else dict(variables)
