"""The agent: supervises the workers that the coordinator wants on this host."""
