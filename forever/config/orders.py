"""The task orders of the paper's benchmarks (docs/protocol.md).

They are FOREVER's order table, which equals that of O-LoRA (orders 1 to 6) and SAPT (7 and 8);
checked against WoodScene/CL_Memory: utils/dataset_order.py, whose ids 4 5 6 1 2 3 7 8 are 1 to 8.
"""

from collections.abc import Sequence

from forever.seeding import permutation

_TABLES = {
    "mini": {
        "1": "sentiment happened past_tense advice topic rain sport opening",
        "2": "opening sport rain topic advice past_tense happened sentiment",
    },
    "standard": {
        "1": "dbpedia amazon yahoo agnews",
        "2": "dbpedia amazon agnews yahoo",
        "3": "yahoo amazon agnews dbpedia",
    },
    "long": {
        "4": "mnli cb wic copa qqp boolqa rte imdb yelp amazon sst-2 dbpedia agnews multirc yahoo",
        "5": "multirc boolqa wic mnli cb copa qqp rte imdb sst-2 dbpedia agnews yelp amazon yahoo",
        "6": "yelp amazon mnli cb copa qqp rte imdb sst-2 dbpedia agnews yahoo multirc boolqa wic",
    },
    "superni": {
        "7": "task1572 task363 task1290 task181 task002 task1510 task639 task1729 task073 task1590 "
        "task748 task511 task591 task1687 task875",
        "8": "task748 task073 task1590 task639 task1572 task1687 task591 task363 task1510 task1729 "
        "task181 task511 task002 task1290 task875",
    },
}
ORDERS: dict[str, dict[str, tuple[str, ...]]] = {
    name: {order: tuple(tasks.split()) for order, tasks in orders.items()}
    for name, orders in _TABLES.items()
}
LONG_TASKS = ORDERS["long"]["4"]
# The paper's 30 tasks: all of Long Sequence and SuperNI in a shuffled order, which is ours.
_BOTH = LONG_TASKS + ORDERS["superni"]["7"]
ORDERS["thirty"] = {"9": tuple(_BOTH[i] for i in permutation(len(_BOTH), 0, "thirty"))}


def default_order(benchmark: str) -> str:
    """The first order of a named benchmark; "1" for others."""
    return next(iter(ORDERS.get(benchmark, {"1": ()})))


def named_tasks(benchmark: str, order: str | Sequence[str]) -> int | None:
    """How many tasks an order has; None if it is a name that does not exist."""
    if isinstance(order, str):
        return len(ORDERS.get(benchmark, {}).get(order, ())) or None
    return len(order)
