"""Benchmarks: their tasks, orders and readers, the prompt, and the way from text to tensors."""
