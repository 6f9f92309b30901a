"""The codec of all recorded kinds, the coordinator's facts and the workers' events, and their JSON
Schema."""

import msgspec

from strata.core.cluster import CODEC as FACTS
from strata.core.events import Codec, Envelope
from strata.core.workers.worker_facts import KINDS

CODEC = Codec([*FACTS.kinds.values(), *KINDS])
"""For readers. Kinds that this release does not know are decoded as `UnknownFact`."""


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
