"""Events and output of this process, on their way to the coordinator."""
