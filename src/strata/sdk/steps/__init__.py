"""Steps: `run.step`, its timing, and local steps."""
