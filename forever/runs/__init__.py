"""A run's directory and its life: session, checkpoint, journal, result."""
