"""MoELoRA: the method and its router."""
