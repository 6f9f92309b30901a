"""What travels between processes: the gRPC server front and the protocols under it."""
