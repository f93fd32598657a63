"""Three ways to start the one task loop.

It runs in this process, as Ray Train workers, or as trials of a Ray Tune sweep.
"""
