"""Sessions with workers and agents, and the unary calls: what comes in and what is sent."""
