"""What `forever show` and `forever diff` make of run directories. Nothing here loads torch."""
