"""JSON merge patch (RFC 7396), and the list of what a patch changed."""

from collections.abc import Iterator

from pydantic import JsonValue


def merge_patch(target: JsonValue, patch: JsonValue) -> JsonValue:
    """`target` with `patch` applied; neither is modified.

    `null` removes a key, arrays are replaced whole.
    """
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


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
