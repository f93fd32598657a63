"""Runs and sweeps in MLflow."""
