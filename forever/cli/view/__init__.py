"""What `forever show`, `forever diff` and `forever data check` print. Nothing here loads torch."""
