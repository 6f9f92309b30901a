"""Everything that a run records: the coordinator's facts and the workers' own, in one codec."""

from strata.core.cluster import CODEC as FACTS
from strata.core.events import Codec
from strata.core.worker_facts import KINDS

CODEC = Codec([*FACTS.kinds.values(), *KINDS])
"""For readers. Kinds that this release does not know come as `UnknownFact`."""
