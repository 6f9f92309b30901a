"""The description of the API, made from the endpoints themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from litestar import Litestar, Router
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from strata.coordinator.http.models import CreateTaskRequest, RegisterDatasetRequest

STRICT = (CreateTaskRequest, RegisterDatasetRequest)
"""Bodies in which an unknown field is refused: the framework does not say so by itself."""


def describe(routes: Sequence[Router], dependencies: Mapping[str, Provide], version: str) -> bytes:
    """The OpenAPI document of these routes, as JSON."""
    config = OpenAPIConfig(
        title="Strata",
        version=version,
        description=(
            "The coordinator of a Strata cluster. Times are Unix milliseconds. Lists are bounded: "
            "`limit` and `cursor` page through them. Every refusal has the same shape."
        ),
        use_handler_docstrings=True,
        components=Components(
            security_schemes={
                "token": SecurityScheme(
                    type="http", scheme="bearer", description="Needed when a token is set."
                )
            }
        ),
        security=[{}, {"token": []}],
    )
    # A second application only describes itself: the one that serves would add pages of its own.
    app = Litestar(routes, dependencies=dependencies, openapi_config=config, logging_config=None)
    described: dict[str, Any] = app.openapi_schema.to_schema()
    for body in STRICT:
        described["components"]["schemas"][body.__name__]["additionalProperties"] = False
    return msgspec.json.encode(described)
