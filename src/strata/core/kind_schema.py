"""The JSON Schema of everything that a run records: one definition per kind, and the envelope."""

import msgspec

from strata.core.catalogue import CODEC
from strata.core.events import Envelope

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, object]:
    """A schema that any event's JSON form satisfies; the kinds are under `$defs`."""
    kinds = list(CODEC.kinds.values())
    fields = [field.name for field in msgspec.structs.fields(Envelope)]
    _, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    bodies = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds]
    return {
        "$schema": DIALECT,
        "title": "Strata events",
        "description": f"A body is one of these; its envelope is the array [{', '.join(fields)}].",
        "oneOf": bodies,
        "$defs": definitions,
    }
