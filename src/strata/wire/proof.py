"""How a caller proves that it is the worker, or the agent, that registered.

Whoever registers draws a nonce and shows it again with whatever it says later. Ids and incarnations
are there for everyone to read, in the API and in the facts; of a nonce only the digest is kept, so
nobody who reads them can speak for somebody else. One who registered without a nonce proves
nothing, and anyone who may call the coordinator can speak for it.
"""

import hmac
from hashlib import blake2b

from strata.core.limits import require_text
from strata.core.workers import Worker
from strata.errors import Fenced, PermissionDenied

DIGEST_BYTES = 16


def digest(nonce: str) -> str:
    """What is kept of a nonce; of none, nothing."""
    require_text(nonce=nonce)
    encoded = nonce.encode("utf-8")
    return blake2b(encoded, digest_size=DIGEST_BYTES).hexdigest() if nonce else ""


def require_proof(worker: Worker, incarnation: int, nonce: str) -> None:
    """Refuses to take a caller for the present incarnation of a worker unless it has its nonce.

    An older incarnation is left to the rules, which refuse it and record that. One that was never
    given is refused here: it may be given before the rules see it.
    """
    if incarnation > worker.incarnation:
        raise Fenced(
            f"incarnation {incarnation} of worker {worker.id!r} is fenced: it was never given to "
            f"this worker",
            hint="register again; the worker then gets a new incarnation",
        )
    if not worker.nonce or incarnation != worker.incarnation:
        return
    if not hmac.compare_digest(digest(nonce), worker.nonce):
        raise PermissionDenied(
            f"the caller is not the process that registered as worker {worker.id!r}",
            hint="send the nonce of the registration along",
        )
