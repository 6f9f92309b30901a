"""Training curves: metrics that scripts logged, and figures derived from recorded steps."""
