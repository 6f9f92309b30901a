"""The certificates of a client: the authority that it trusts, and its own certificate.

TLS is used if either is set: a client whose settings name certificates sends its token to no other
machine in clear text. Only an explicit `http://` address of this machine means clear text, because
the settings may be for another coordinator than one that a command starts here.
"""

import ssl
from urllib.parse import urlsplit

from msgspec import Struct

from strata.config import Settings
from strata.wire.certificate_files import Pair, load_authorities, versions
from strata.wire.certificates import date_problem

ENCRYPTED = ("https", "grpcs")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
WRONG_NAME = ("Hostname Verification", "IP address mismatch", "Hostname mismatch")
UNTRUSTED = ("certificate verify failed", "CERTIFICATE_VERIFY_FAILED")
CLOSED = ("Socket closed", "Connection reset", "handshake failed", "Broken pipe")
OWN = ("STRATA_TLS_CLIENT_CERT", "STRATA_TLS_CLIENT_KEY")


class ClientCertificates(Struct, frozen=True):
    """PEM files: certificates to trust (default: those of the system), own certificate and key."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def used(self) -> bool:
        """Whether any is set, which means TLS."""
        return bool(self.ca or self.cert or self.key)

    def encrypts(self, addresses: str) -> bool:
        """Whether connections to these addresses use TLS: all of them, or none."""
        return any(self._encrypts(each.strip()) for each in addresses.split(","))

    def _encrypts(self, address: str) -> bool:
        parts = urlsplit(address if "://" in address else f"//{address}")
        local = parts.scheme == "http" and parts.hostname in LOOPBACK
        return parts.scheme in ENCRYPTED or (self.used and not local)

    @property
    def versions(self) -> tuple[tuple[int, ...], ...]:
        """Changes when one of the files does."""
        return versions(self.ca, self.cert, self.key)

    @property
    def problems(self) -> list[str]:
        """Warnings about certificates that have expired or expire soon."""
        found = (date_problem(self.ca, whole=True), date_problem(self.cert))
        return [problem for problem in found if problem]

    def advice(self, reason: str) -> str:
        """What to do after a TLS connection failed for this reason; empty if TLS is no cause.

        A server that refuses a client's certificate only closes the connection.
        """
        if any(sign in reason for sign in WRONG_NAME):
            return "use a name of the coordinator's host for which its certificate was issued"
        if any(sign in reason for sign in UNTRUSTED):
            return "set STRATA_TLS_CA to the certificate that signed the coordinator's"
        if not any(sign in reason for sign in CLOSED):
            return ""
        if not self.cert:
            return (
                "if the coordinator requires client certificates (tls_client_ca), set "
                "STRATA_TLS_CLIENT_CERT and STRATA_TLS_CLIENT_KEY; also check that it uses TLS"
            )
        wrong = date_problem(self.cert)
        return wrong or (
            f"the coordinator may not accept the client certificate {self.cert}: the authority in "
            "its tls_client_ca must have signed it"
        )

    def https_context(self) -> ssl.SSLContext:
        """A context for HTTPS, which checks the host's name; raises if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca:
            load_authorities(context, self.ca)
        else:
            context.load_default_certs()
        if self.cert or self.key:
            Pair(self.cert, self.key, OWN).load(context)
        return context


def client_certificates(settings: Settings) -> ClientCertificates:
    """The certificates in the settings; the coordinator's own certificate serves as authority."""
    return ClientCertificates(
        ca=settings.tls_ca or settings.tls_cert,
        cert=settings.tls_client_cert,
        key=settings.tls_client_key,
    )
