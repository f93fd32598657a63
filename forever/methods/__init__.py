"""Continual-learning methods: one file each, all generators of steps on the same loop."""
