"""The single writer: decides commands, appends facts, and answers the waiting requests."""
