"""Sweeps as files and searches: what runs differ in, which runs that makes, and what was found."""
