"""Gets agents and workers running: in this process, on this machine."""
