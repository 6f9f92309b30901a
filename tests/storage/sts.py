"""Temporary credentials (key, secret, session token) from the test server's token service."""

import urllib.parse
import urllib.request
from datetime import UTC, datetime
from hashlib import sha256
from hmac import digest
from xml.etree import ElementTree

import msgspec

from strata.config import Settings


def temporary(settings: Settings) -> Settings:
    """The settings with temporary credentials from `AssumeRole`."""
    query = {"Action": "AssumeRole", "Version": "2011-06-15", "RoleSessionName": "tests"}
    body = urllib.parse.urlencode(query).encode()
    url = settings.aws_endpoint_url + "/"
    request = urllib.request.Request(url, body, signed(settings, body))
    with urllib.request.urlopen(request) as answer:
        found = ElementTree.fromstring(answer.read())
    names = {
        "aws_access_key_id": "AccessKeyId",
        "aws_secret_access_key": "SecretAccessKey",
        "aws_session_token": "SessionToken",
    }
    told = {ours: found.findtext(f".//{{*}}{theirs}") for ours, theirs in names.items()}
    assert all(told.values())
    return msgspec.structs.replace(settings, **told)


def signed(settings: Settings, body: bytes) -> dict[str, str]:
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    steps = (moment[:8], settings.aws_region, "sts", "aws4_request")
    host = urllib.parse.urlsplit(settings.aws_endpoint_url).netloc
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "host": host,
        "x-amz-date": moment,
    }
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    names = ";".join(headers)
    parts = ["POST", "/", "", lines, names, sha256(body).hexdigest()]
    canonical = sha256("\n".join(parts).encode()).hexdigest()
    key = f"AWS4{settings.aws_secret_access_key}".encode()
    for step in steps:
        key = digest(key, step.encode(), "sha256")
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, "/".join(steps), canonical])
    credential = f"{settings.aws_access_key_id}/{'/'.join(steps)}"
    signature = digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
