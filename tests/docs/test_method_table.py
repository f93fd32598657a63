"""docs/methods.md says what the code says."""

import pytest

from forever.config.methods import METHOD_CONFIGS
from scripts.method_table import PAGE, page, sizes

# Qwen3-0.6B: 28 layers, width 1024, q_proj 2048 wide, v_proj 1024 wide, r = 8.
ADAPTER = 28 * 8 * ((1024 + 2048) + (1024 + 1024))
QUERY_NET = 2 * 100 * 1024 + 2 * 1024


def test_page_is_what_the_code_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.method_table"


@pytest.mark.parametrize(
    ("name", "trained", "stored"),
    [
        ("finetune", ADAPTER, ADAPTER),
        ("forever", ADAPTER, ADAPTER),
        ("ewc", ADAPTER, 3 * ADAPTER),
        ("olora", ADAPTER, 15 * ADAPTER),
        ("moelora", 15 * ADAPTER + 2 * 28 * 15 * 1024, 15 * ADAPTER + 2 * 28 * 15 * 1024),
        # A key a task, and the mean attention after each task, on that task and those before it.
        ("sapt", ADAPTER + QUERY_NET + 1024, 15 * (ADAPTER + 1024) + QUERY_NET + 15 * 15),
    ],
)
def test_sizes_by_hand(name: str, trained: int, stored: int) -> None:
    assert ADAPTER == 1_146_880  # published
    assert sizes(name) == (trained, stored)


@pytest.mark.parametrize("name", METHOD_CONFIGS)
def test_every_hyper_parameter_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    for key, field in METHOD_CONFIGS[name].model_fields.items():
        assert key == "name" or field.description, key
