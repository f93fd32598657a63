"""Files to begin with, which `forever init` writes: they run as they are."""
