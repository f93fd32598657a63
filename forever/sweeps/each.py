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
    bounds = {name: variant for name, variant in variants.items() if _is_bound(variant)}
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


def check_point(name: str, point: Variant) -> None:
    """Refuse, by an InputError, a point that no variant could have."""
    rule = ""
    if not name.strip():
        rule = "has no name; give one"
    elif words := point.model_fields_set - {"changes", "named"}:
        rule = f"has {min(words)!r}, which is a word of variants; give dotted keys"
    elif "method.name" in point.changes:
        rule = "has 'method.name', by which variants differ; give other keys"
    if rule:
        raise InputError(f"each: {shown(name)} {rule}")


def _is_bound(variant: Variant) -> bool:
    return (variant.method or variant.changes.get("method.name")) in BOUNDS
