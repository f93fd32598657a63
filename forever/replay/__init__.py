"""The three slots of scheduled replay: the clock (how time passes), the schedule (at which days)
and the regulariser (how strongly)."""
