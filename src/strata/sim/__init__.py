"""The simulator: the real core and kernel with a virtual clock, network and disk, from a seed."""
