"""Load certificates, keys and authorities from PEM files, with errors that name the file.

OpenSSL's own errors do not say which of the files is wrong, and it asks on the terminal for the
passphrase of an encrypted key, which would block a server.
"""

import ssl
from pathlib import Path

from msgspec import Struct

from strata.errors import SettingError
from strata.wire.certificates import BEGIN

KEY_BEGIN = "PRIVATE KEY-----"
ENCRYPTED = "ENCRYPTED"


class Pair(Struct, frozen=True):
    """The files of a certificate and its private key, and the flags or variables that name them."""

    cert: str
    key: str
    settings: tuple[str, str]

    def load(self, context: ssl.SSLContext) -> None:
        """Use the pair in a context."""
        names = " and ".join(self.settings)
        if not (self.cert and self.key):
            raise SettingError(
                "TLS needs both a certificate and a key", hint=f"set {names}, two PEM files"
            )
        require(self.cert, BEGIN, f"the certificate {self.cert}")
        text = require(self.key, KEY_BEGIN, f"the private key {self.key}")
        if ENCRYPTED in text:
            raise SettingError(
                f"the private key {self.key} is encrypted with a passphrase",
                hint="use a file without a passphrase that only its user can read: openssl pkey "
                f"-in {self.key} -out FILE",
            )
        try:
            context.load_cert_chain(self.cert, self.key)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise SettingError(
                    f"the private key {self.key} does not belong to the certificate {self.cert}",
                    hint=f"set {names} to files that were made together",
                ) from error
            raise SettingError(
                f"the certificate {self.cert} and the private key {self.key} cannot be used: "
                f"{error}",
                hint=HINT,
            ) from error

    def check(self) -> None:
        """Raise the error of a pair that cannot be used."""
        self.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


HINT = "both are PEM files; a certificate begins with -----BEGIN CERTIFICATE-----"


def load_authorities(context: ssl.SSLContext, file: str) -> None:
    """Trust the certificates of a file."""
    require(file, BEGIN, f"the certificate {file}")
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"the certificate {file} cannot be used: {error}", hint=HINT) from error
    # A file may name an intermediate certificate, or the server's own, instead of the root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def require(file: str, content: str, what: str) -> str:
    """The text of a PEM file; raises if it cannot be read or lacks what it must contain."""
    try:
        text = Path(file).read_text("ascii", errors="replace")
    except OSError as error:
        raise SettingError(f"cannot read {what}: {error.strerror}", hint=HINT) from error
    if content not in text:
        raise SettingError(f"{what} cannot be used: the file has no PEM block of it", hint=HINT)
    return text


def versions(*files: str) -> tuple[tuple[int, ...], ...]:
    """What changes when one of the files is replaced or written; empty for one that is missing."""
    return tuple(_version(file) for file in files if file)


def _version(file: str) -> tuple[int, ...]:
    try:
        found = Path(file).stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size
