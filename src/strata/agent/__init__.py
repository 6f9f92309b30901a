"""The host supervisor: keeps the workers running that the coordinator wants on this host."""
