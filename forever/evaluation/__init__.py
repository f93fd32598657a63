"""Answers of a model, and their scores."""
