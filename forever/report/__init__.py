"""Reports on runs: tables, figures, statistics, and claims held against what was measured."""
