"""A sweep's file may run each of its variants with each of some points, as in several doses."""

from collections.abc import Mapping
from itertools import product

from forever.errors import InputError, shown
from forever.sweeps.parts import LONGEST_NAME, Variant
from forever.sweeps.sweep import BOUNDS, check_count


def with_each(
    sweep: str, variants: Mapping[str, Variant], each: Mapping[str, Variant], reference: str
) -> dict[str, Variant]:
    """Every variant but the bounds with each point: `a` at `x` is called `a x`, and is compared
    there with what `a` is compared with, by default with the variant of the `reference`.

    Raises:
        InputError: a name has two meanings, or is too long, or there are too many.
    """
    check_count(sweep, len(variants) * len(each))
    single = {f"{name} {point}": name for name, point in product(variants, each)}
    lead = single.get(reference, reference)
    bounds = {name: variant for name, variant in variants.items() if variant.method in BOUNDS}
    others = {name: variant for name, variant in variants.items() if name not in bounds}
    crossed: dict[str, Variant] = {}
    for (name, variant), (point, more) in product(others.items(), each.items()):
        key = f"{name} {point}"
        if key in crossed or key in bounds or len(key) > LONGEST_NAME:
            rule = f"one name has two meanings, or more than {LONGEST_NAME} characters"
            raise InputError(f"sweep {sweep}, each: {shown(key)}: {rule}; give another")
        compared = variant.reference or lead
        named = f"{variant.named or name} {more.named or point}"
        changes = {
            "changes": {**variant.changes, **more.changes},
            "named": named if variant.named or more.named else "",
            "reference": compared if compared in bounds else f"{compared} {point}",
        }
        crossed[key] = variant.model_copy(update=changes)
    return {**crossed, **bounds}
