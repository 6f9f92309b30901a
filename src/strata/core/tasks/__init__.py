"""Tasks: what was submitted, where its workers run, and when a failing task is stopped."""
