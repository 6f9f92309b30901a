"""The server's half of HTTP/2, as far as gRPC needs it, without I/O."""
