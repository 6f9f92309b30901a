"""Datasets: who trains which samples, in which epoch and loop."""
