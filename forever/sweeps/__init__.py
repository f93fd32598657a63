"""Sweeps: files of variants and spaces, and the runs that they mean."""
