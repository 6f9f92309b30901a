"""Log lines of the coordinator and the workers: stored within a size limit, searched, followed."""
