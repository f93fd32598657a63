"""Statistics of paired runs: intervals, tests, verdicts, and when seeds are enough."""
