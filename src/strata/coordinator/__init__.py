"""The coordinator: the single writer of facts, and its gRPC and REST servers."""
