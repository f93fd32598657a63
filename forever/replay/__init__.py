"""The three slots of scheduled replay: when (clock), at which days (schedule), how strongly
(regulariser)."""
