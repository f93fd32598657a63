"""Sweeps: variants of a run, and searches."""
