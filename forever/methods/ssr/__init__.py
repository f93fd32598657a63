"""SSR: the method, what it writes and the encoders that compare it."""
