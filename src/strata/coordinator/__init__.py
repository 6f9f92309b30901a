"""The coordinator: the single writer of the facts, and the servers through which it is reached."""
