"""What a run trained, as a folder that others can load, with a card that says how it was made."""
