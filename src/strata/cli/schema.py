"""Print the JSON Schema of every kind of event."""

import msgspec
import typer


def schema() -> None:
    """Print the JSON Schema of every kind of event that a run records."""
    from strata.core.record.event_codec import json_schema

    typer.echo(msgspec.json.format(msgspec.json.encode(json_schema())).decode())
