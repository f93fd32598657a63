"""Training: the loop, its one update, and what they work on."""
