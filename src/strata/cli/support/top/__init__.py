"""The live terminal view, `strata top`: a mirror of the cluster, its tables and screens."""
