"""Questions about a run, answered with a verdict, the chain of causes and the cost."""
