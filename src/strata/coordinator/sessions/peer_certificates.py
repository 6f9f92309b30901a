"""The certificate with which the workers of a task encrypt what they send each other.

Workers have no certificates of an authority, so the coordinator makes one key and certificate per
task and sends them with each standing, through the session that TLS protects. Every worker presents
this certificate and accepts no other. The key is computed from the secret of the peer tokens, and
an Ed25519 signature from its key: a restart makes the same bytes, and no key is stored.
"""

import hmac
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

SINCE = datetime(1970, 1, 1, tzinfo=UTC)
UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""It is valid as long as its task: workers compare the certificate, and clocks may be wrong."""

NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "strata workers of one task")])


def peer_certificate(secret: bytes, task: str) -> str:
    """Key and certificate of a task in PEM."""
    seed = hmac.new(secret, f"certificate/{task}".encode(), "sha256").digest()
    key = Ed25519PrivateKey.from_private_bytes(seed)
    builder = x509.CertificateBuilder(subject_name=NAME, issuer_name=NAME)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(SINCE).not_valid_after(UNTIL)
    made = builder.sign(key, None)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (private + made.public_bytes(Encoding.PEM)).decode()
