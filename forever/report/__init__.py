"""Reports: what run directories say, in tables and figures."""
