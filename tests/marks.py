"""Marks of tests whose libraries warn, which is an error elsewhere."""

import pytest

# Ray and MLflow use deprecated parts of themselves and of their dependencies, and leave sockets and
# database connections to the collector.
_WARNINGS = [
    "DeprecationWarning",
    "FutureWarning",
    "PendingDeprecationWarning",
    "ResourceWarning",
    "pytest.PytestUnraisableExceptionWarning",
]
MLFLOW_WARNS = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in _WARNINGS]
RAY_WARNS = [*MLFLOW_WARNS, pytest.mark.filterwarnings("ignore::UserWarning:ray.*")]
ON_RAY = [pytest.mark.ray, pytest.mark.usefixtures("private_ray"), *RAY_WARNS]

# TRL 1.16 uses names that transformers 5.23 calls deprecated.
TRL_WARNS = [pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")]
