"""The verbs of the command line, a file each or two that belong together."""
