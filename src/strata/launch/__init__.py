"""Start coordinators and agents: in this process, as a companion, or on a Ray cluster."""
