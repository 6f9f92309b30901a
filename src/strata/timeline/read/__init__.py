"""Reading a run: one clock, any moment, causes, stories, sentences."""
