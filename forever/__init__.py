"""forever-cl: when to replay, and how strongly, in the continual learning of language models."""

__version__ = "0.1.0"
