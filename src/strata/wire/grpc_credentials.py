"""Credentials of gRPC channels, from the certificates of a client.

gRPC reads the files once per channel, so a client whose files have changed needs a new channel. It
asks for the newest credentials whenever it connects again.
"""

import logging
from pathlib import Path

from strata.errors import SettingError
from strata.wire.certificate_files import Pair, require
from strata.wire.certificates import BEGIN
from strata.wire.client_certificates import OWN, ClientCertificates
from strata.wire.grpc_library import grpc

log = logging.getLogger(__name__)


class Credentials:
    """The newest usable credentials of a client; raises if those of the start cannot be used."""

    def __init__(self, tls: ClientCertificates) -> None:
        self.tls = tls
        self._versions = tls.versions
        self._newest = self._load()

    def newest(self) -> grpc.ChannelCredentials:
        """The credentials, loaded again if a file has changed; the same object if none has."""
        found = self.tls.versions
        if found != self._versions:
            self._versions = found
            try:
                self._newest = self._load()
            except SettingError as error:
                log.error("the changed certificate files are refused, the old ones stay: %s", error)
        return self._newest

    def _load(self) -> grpc.ChannelCredentials:
        tls, roots, chain, key = self.tls, None, None, None
        if tls.ca:
            require(tls.ca, BEGIN, f"the certificate {tls.ca}")
            roots = Path(tls.ca).read_bytes()
        if tls.cert or tls.key:
            Pair(tls.cert, tls.key, OWN).check()
            chain, key = Path(tls.cert).read_bytes(), Path(tls.key).read_bytes()
        for problem in tls.problems:
            log.warning("%s", problem)
        return grpc.ssl_channel_credentials(roots, key, chain)
