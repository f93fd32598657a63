"""Sweeps as files and searches: variants, the runs that they make, and rounds of seeds."""
