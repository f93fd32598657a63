"""forever-cl: when to replay, and how strongly. Continual learning of language models around
FOREVER."""

__version__ = "0.1.0"
