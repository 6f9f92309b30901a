"""S3 requests that obstore does not offer, signed here with AWS Signature Version 4.

obstore cannot list, begin or abort multipart uploads, and it percent-encodes the `?` of a presigned
path, so its signer cannot carry the query parameters of these requests. The only other library that
could, botocore, would be a new dependency for the 25 lines of `signed`, which take 20 µs a request.

Keys and temporary credentials (with a session token) can sign. Credentials that only obstore finds
(an instance role, a web identity) cannot; `can_sign` tells which it is.
"""

import hashlib
import hmac
import http.client
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from msgspec import Struct

from strata.config import Settings
from strata.errors import Unavailable
from strata.storage.storage_errors import s3_error

DEFAULT_REGION = "us-east-1"
TIMEOUT_S = 30


class S3Response(Struct, frozen=True):
    """The body of a response, and the server's clock."""

    body: bytes
    now_s: float


class S3Requests:
    """Requests to one bucket. `doing` and `permission` appear in the error if one is refused."""

    def __init__(self, bucket: str, settings: Settings, doing: str, permission: str) -> None:
        self._bucket, self._settings = bucket, settings
        self._doing, self._permission = f"cannot {doing} in s3://{bucket}", permission

    @property
    def can_sign(self) -> bool:
        return bool(self._settings.aws_access_key_id and self._settings.aws_secret_access_key)

    def call(
        self,
        verb: str,
        key: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = TIMEOUT_S,
    ) -> S3Response:
        """Send one request; a response of status 404 is returned, others above 299 raise."""
        region = self._settings.aws_region or DEFAULT_REGION
        url = self._settings.aws_endpoint_url or f"https://s3.{region}.amazonaws.com"
        endpoint = urlsplit(url)
        secure = endpoint.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        path = "/" + quoted_path(f"{endpoint.path.strip('/')}/{self._bucket}/{key}".strip("/"))
        line = "&".join(f"{quoted(k)}={quoted(v)}" for k, v in sorted(query.items()))
        content = {"host": endpoint.netloc, **(headers or {})}
        now = datetime.now(UTC)
        signed_headers = signed(verb, path, line, content, body, region, self._settings, now)
        connection = kind(endpoint.netloc, timeout=timeout_s)
        try:
            connection.request(verb, f"{path}?{line}", body=body or None, headers=signed_headers)
            response = connection.getresponse()
            received = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"{self._doing}: {error}", hint="check AWS_ENDPOINT_URL, AWS_REGION and the network"
            ) from error
        finally:
            connection.close()
        if response.status >= 300 and response.status != 404:
            refusal = Exception(
                f"status code: {response.status} {received.decode('utf-8', 'replace')}"
            )
            raise s3_error(refusal, self._doing, self._bucket, self._permission)
        date = response.headers.get("Date")
        if date:
            now = datetime.strptime(date, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
        return S3Response(received, now.timestamp())


def quoted(text: str) -> str:
    return quote(text, safe="-_.~")


def quoted_path(text: str) -> str:
    return quote(text, safe="/-_.~")


def signed(
    verb: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    body: bytes,
    region: str,
    settings: Settings,
    now: datetime,
) -> dict[str, str]:
    """The headers of a request, including those that sign it."""
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    content = hashlib.sha256(body).hexdigest()
    added = {"x-amz-content-sha256": content, "x-amz-date": moment}
    if settings.aws_session_token:
        added["x-amz-security-token"] = settings.aws_session_token
    every = dict(sorted({**headers, **added}.items()))
    names = ";".join(every)
    lines = "".join(f"{name}:{value}\n" for name, value in every.items())
    request = "\n".join([verb, path, query, lines, names, content])
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{settings.aws_secret_access_key}".encode()
    for step in (moment[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, digest])
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    every["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={settings.aws_access_key_id}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return every
