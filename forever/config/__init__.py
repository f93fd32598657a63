"""Configurations of runs: frozen values that say what to run. Nothing here loads torch."""
