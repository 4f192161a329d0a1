"""JSON merge patch (RFC 7396) with lists that merge by name, and the list of what a patch changed.

A list of objects that all have a `name`, an `id` or a `metric` of their own is merged item by item:
a scale that changes one bound of a gate states that bound, and shadows nothing else of it.
"""

from collections.abc import Iterator

from pydantic import JsonValue

NAMES = ("name", "id", "metric")
"""What tells the items of a list apart: the first of these that all items have."""


def merge_patch(target: JsonValue, patch: JsonValue) -> JsonValue:
    """`target` with `patch` applied; neither is modified.

    `null` removes a key, and `"remove": true` an item of a list that merges by name. An item that
    is not there yet is added at the end. Other lists are replaced whole.
    """
    if isinstance(patch, list) and isinstance(target, list):
        return _merged_by_name(target, patch)
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _merged_by_name(target: list[JsonValue], patch: list[JsonValue]) -> list[JsonValue]:
    key = next((key for key in NAMES if _named(target, key) and _named(patch, key)), None)
    if key is None:
        return patch
    merged = {item[key]: item for item in target if isinstance(item, dict)}
    for item in patch:
        assert isinstance(item, dict)
        if item.get("remove") is True:
            merged.pop(item[key], None)
        else:
            whole = merge_patch(merged.get(item[key]), item)
            assert isinstance(whole, dict)
            merged[item[key]] = whole
    return list(merged.values())


def _named(items: list[JsonValue], key: str) -> bool:
    """Whether all items are objects with that key, and no two have the same text under it."""
    names = [item.get(key) for item in items if isinstance(item, dict)]
    texts = {name for name in names if isinstance(name, str)}
    return len(items) == len(names) == len(texts) > 0


def changed_pointers(before: JsonValue, after: JsonValue, at: str = "") -> Iterator[str]:
    """JSON pointers of every leaf in which two documents differ, in document order."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key in before and key in after:
                yield from changed_pointers(before[key], after[key], f"{at}/{key}")
            else:
                yield f"{at}/{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changed_pointers(old, new, f"{at}/{index}")
    elif type(before) is not type(after) or before != after:
        yield at
