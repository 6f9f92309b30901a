"""The gRPC server, HTTP/2 below it, and the conversion of messages."""
