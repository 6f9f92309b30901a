"""What is true and what follows from it: facts, state and rules, free of I/O, clock and chance."""
