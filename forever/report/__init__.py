"""Reports on runs: tables, figures, and the published numbers beside them."""
