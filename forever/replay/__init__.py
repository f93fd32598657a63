"""The three slots of a replay: clock (how time passes), schedule (which days), regulariser."""
