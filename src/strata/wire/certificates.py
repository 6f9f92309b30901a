"""Validity dates of certificates in PEM files, with warnings.

OpenSSL refuses an expired certificate only at a connection, with little detail. Therefore the dates
are checked when a certificate file is read. They are decoded from DER (RFC 5280), because `ssl` has
no public way to decode a certificate without a connection.
"""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

SOON = timedelta(days=14)
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

_SEQUENCE = 0x30
_VERSION = 0xA0
_UTC_TIME = 0x17


class Validity(Struct, frozen=True):
    """Validity dates of a certificate."""

    since: datetime
    until: datetime


def dates_in(pem: str) -> list[Validity]:
    """Validity of each certificate in a PEM text; raises `ValueError` if one is invalid."""
    blocks = pem.split(BEGIN)[1:]
    texts = (f"{BEGIN}{block.partition(END)[0]}{END}\n" for block in blocks)
    return [_validity(ssl.PEM_cert_to_DER_cert(text)) for text in texts]


def date_problem(path: str, now: datetime | None = None, whole: bool = False) -> str:
    """A warning if the certificate in a file is expired, not valid yet or expires soon; or empty.

    Only the first certificate is checked, or all with `whole`. A file that cannot be read or
    decoded gives no warning: its user gets the error.
    """
    try:
        found = dates_in(Path(path).read_text("ascii", errors="replace"))
    except (OSError, ValueError):
        return ""
    now = now or datetime.now(UTC)
    problems = (_problem(path, each, now) for each in (found if whole else found[:1]))
    return next(filter(None, problems), "")


def validity_of(path: str) -> Validity | None:
    """Validity of the first certificate in a file; None if it cannot be read or decoded."""
    try:
        return next(iter(dates_in(Path(path).read_text("ascii", errors="replace"))), None)
    except (OSError, ValueError):
        return None


def _problem(path: str, valid: Validity, now: datetime) -> str:
    if now > valid.until:
        return (
            f"the certificate {path} expired on {shown_date(valid.until)}: TLS connections fail; "
            "replace the file with a renewed certificate"
        )
    if now < valid.since:
        return (
            f"the certificate {path} is not valid before {shown_date(valid.since)}: TLS "
            f"connections fail; check the clock of this machine (it shows {shown_date(now)}), or "
            "use another certificate"
        )
    if valid.until - now < SOON:
        return (
            f"the certificate {path} expires on {shown_date(valid.until)}, in "
            f"{_left(valid.until - now)}: replace the file with a renewed certificate before that"
        )
    return ""


def shown_date(moment: datetime) -> str:
    """A date for messages."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _left(left: timedelta) -> str:
    return f"{left.days} days" if left.days > 1 else f"{left // timedelta(hours=1)} hours"


def _validity(der: bytes) -> Validity:
    """The dates of a certificate in DER: Certificate > TBSCertificate > Validity."""
    _, certificate = next(_elements(der))
    _, body = next(_elements(certificate))
    fields = [element for element in _elements(body) if element[0] != _VERSION]
    # serial number, signature algorithm, issuer, validity
    tag, dates = fields[3] if len(fields) > 3 else (0, b"")
    if tag != _SEQUENCE:
        raise ValueError("this is not a certificate")
    since, until = (_moment(*element) for element in _elements(dates))
    return Validity(since, until)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element in DER."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("an element is incomplete")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("an element is longer than its container")
        yield tag, data[at : at + length]
        at += length


def _moment(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = f"{'20' if int(text[:2]) < 50 else '19'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
