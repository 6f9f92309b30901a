"""Ends multipart uploads that dead writers left behind.

Their parts are invisible and cost money until somebody aborts the upload. The library can neither
list nor abort them, so these two calls are signed here (AWS Signature Version 4, with the two
header fields that S3 requires). Only uploads below the prefix and older than the given age go:
younger ones may belong to somebody who is still writing. Credentials that are not in the settings
(a role, temporary ones) cannot sign here; a lifecycle rule on the bucket does the same.
"""

import hashlib
import hmac
import http.client
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from strata.config import Settings
from strata.errors import StrataError, Unavailable
from strata.storage.s3_faults import s3_fault

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
TIMEOUT_S = 30
PAGE_LIMIT = 100
PERMISSION = "s3:ListBucketMultipartUploads and s3:AbortMultipartUpload"


class Upload(NamedTuple):
    key: str
    upload_id: str
    begun_s: float


def abort_leftover_uploads(
    bucket: str, prefix: str, settings: Settings, older_than_s: float
) -> int:
    """Aborts old uploads below the prefix; returns how many. The server's clock decides."""
    if not (settings.aws_access_key_id and settings.aws_secret_access_key):
        return 0
    aborted = 0
    marker: dict[str, str] = {}
    for _ in range(PAGE_LIMIT):
        page, now_s = _call(
            "GET", bucket, "", {"uploads": "", "prefix": prefix, **marker}, settings
        )
        uploads, marker = parsed(page)
        for upload in uploads:
            inside = not prefix or upload.key.startswith(f"{prefix}/")
            if inside and now_s - upload.begun_s >= older_than_s:
                _call("DELETE", bucket, upload.key, {"uploadId": upload.upload_id}, settings)
                aborted += 1
        if not marker:
            break
    return aborted


def parsed(page: bytes) -> tuple[list[Upload], dict[str, str]]:
    """The uploads of one page, and the parameters that ask for the next."""
    root = ElementTree.fromstring(page)

    def text(node: ElementTree.Element, name: str) -> str:
        return node.findtext(f"{{*}}{name}") or ""

    uploads = [
        Upload(
            text(node, "Key").lstrip("/"),
            text(node, "UploadId"),
            datetime.fromisoformat(text(node, "Initiated")).timestamp(),
        )
        for node in root.iterfind("{*}Upload")
    ]
    if text(root, "IsTruncated") != "true":
        return uploads, {}
    return uploads, {
        "key-marker": text(root, "NextKeyMarker"),
        "upload-id-marker": text(root, "NextUploadIdMarker"),
    }


def _call(
    verb: str, bucket: str, key: str, query: dict[str, str], settings: Settings
) -> tuple[bytes, float]:
    region = settings.aws_region or "us-east-1"
    endpoint = urlsplit(settings.aws_endpoint_url or f"https://s3.{region}.amazonaws.com")
    secure = endpoint.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    path = "/" + quote(f"{endpoint.path.strip('/')}/{bucket}/{key}".strip("/"), safe="/-_.~")
    line = "&".join(
        f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in sorted(query.items())
    )
    headers = signed(verb, endpoint.netloc, path, line, region, settings, datetime.now(UTC))
    connection = kind(endpoint.netloc, timeout=TIMEOUT_S)
    try:
        connection.request(verb, f"{path}?{line}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"cannot end left-over uploads in s3://{bucket}: {error}",
            hint="check AWS_ENDPOINT_URL, AWS_REGION and network",
        ) from error
    finally:
        connection.close()
    if answer.status >= 300 and answer.status != 404:
        raise _refused(answer.status, body, bucket)
    date = answer.headers.get("Date")
    now = datetime.strptime(date, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC) if date else None
    return body, (now or datetime.now(UTC)).timestamp()


def _refused(status: int, body: bytes, bucket: str) -> StrataError:
    told = Exception(f"status code: {status} {body.decode('utf-8', 'replace')}")
    return s3_fault(told, f"cannot end left-over uploads in s3://{bucket}", bucket, PERMISSION)


def signed(
    verb: str, host: str, path: str, query: str, region: str, settings: Settings, now: datetime
) -> dict[str, str]:
    """The headers of a request without a body."""
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    headers = {"host": host, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": moment}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = "\n".join([verb, path, query, lines, names, EMPTY_SHA256])
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{settings.aws_secret_access_key}".encode()
    for step in (moment[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, digest])
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={settings.aws_access_key_id}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers
