"""`forever submit`: a sweep as a job of a Ray cluster, or written down for other schedulers."""
