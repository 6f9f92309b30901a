"""Where the workers' time went, what caused it, and what it cost."""
