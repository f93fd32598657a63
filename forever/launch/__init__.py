"""Three ways to start the one task loop: in this process, as Ray Train workers, as trials of a Ray
Tune sweep."""
