"""What the pages of a report are made of: tables, and in report.html figures and scripts."""
