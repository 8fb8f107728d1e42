"""Merges the fields of a document's pages into one object, with the pages, places and conflicts of each leaf."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pecia_schemas.blocks import Grounding, MergeRule, Standing


class Filled(NamedTuple):
    """Value of one property on one page."""

    page: int
    value: Any
    grounding: Mapping[str, Grounding]
    """Grounding of the page's leaves, by path."""
    path: str
    """Path of the property on the page."""

    def inner(self, name: str | int) -> Filled:
        """Return a property or an item of the value."""
        return self._replace(value=self.value[name], path=pointer(self.path, name))

    def leaf(self, path: str) -> Grounding:
        """Return the grounding of a leaf, at another path."""
        known = self.grounding.get(self.path) or Grounding(path=path, value=self.value)
        return known.model_copy(update={"path": path, "value": self.value, "pages": (self.page,)})


def pointer(path: str, name: str | int) -> str:
    """Return the JSON pointer to a property or an item."""
    escaped = str(name).replace("~", "~0").replace("/", "~1")
    return f"{path}/{escaped}"


def merged(
    pages: Sequence[tuple[int, dict[str, Any], Sequence[Grounding]]], rules: Mapping[str, MergeRule]
) -> tuple[dict[str, Any] | None, tuple[Grounding, ...]]:
    """Return the pages' fields as one object, and its leaves. `rules` overrides the merging, by JSON pointer.

    Objects are merged by property and lists are concatenated; of single values, the one on most pages is taken.
    """
    if not pages:
        return None, ()
    filled = [Filled(page, fields, {one.path: one for one in leaves}, "") for page, fields, leaves in pages]
    value, leaves = _merged("", filled, rules)
    return value, tuple(leaves)


def lacking(
    value: Mapping[str, Any] | None,
    pages: Mapping[int, Mapping[str, Any] | None],
    missing: Mapping[int, Collection[str]],
) -> tuple[Grounding, ...]:
    """Return a leaf for each list of a document that lacks rows, or one for all its fields if no page has any.

    `pages` has the fields of each page that may have some; None if unknown. `missing` has, by page, the JSON pointers
    of lists with fewer rows than the page, or the empty pointer for all lists. A page without rows between two pages
    with rows also lacks them.
    """
    if value is None:
        return (Grounding(path="", value=None, lacking=tuple(pages)),) if pages else ()
    leaves = []
    for path in _lists(value, ""):
        rows = {number: _at(fields, path) for number, fields in pages.items()}
        gave = tuple(number for number, items in rows.items() if items)
        lacks = tuple(
            number
            for number in pages
            if pages[number] is None
            or not {"", path}.isdisjoint(missing.get(number, ()))
            or (gave and gave[0] < number < gave[-1] and number not in gave)
        )
        if lacks:
            leaves.append(Grounding(path=path, value=None, pages=gave, lacking=lacks))
    return tuple(leaves)


def _lists(value: Any, path: str) -> Iterator[str]:
    """Yield the pointers of the lists that are not inside another list."""
    if isinstance(value, list):
        yield path
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _lists(inner, pointer(path, name))


def _at(value: Any, path: str) -> Any:
    """Return the value at this path, or None."""
    for name in path.split("/")[1:]:
        value = value.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(value, Mapping) else None
    return value


def _merged(
    path: str, filled: Sequence[Filled], rules: Mapping[str, MergeRule]
) -> tuple[Any, list[Grounding]]:
    given = [one for one in filled if one.value is not None]
    rule = rules.get(path)
    if not given:
        return None, [Grounding(path=path, value=None, pages=tuple(one.page for one in filled))]
    if rule is MergeRule.FIRST:
        return given[0].value, [leaf for one in given[:1] for leaf in _leaves(one, path)]
    if rule is MergeRule.SUM:
        return _sum(path, given)
    if all(isinstance(one.value, dict) for one in given) and rule is None:
        names = dict.fromkeys(name for one in given for name in one.value)
        inner = {
            name: _merged(pointer(path, name), [one.inner(name) for one in given if name in one.value], rules)
            for name in names
        }
        return {name: value for name, (value, _) in inner.items()}, [
            leaf for _, leaves in inner.values() for leaf in leaves
        ]
    if rule is MergeRule.ALL or (rule is None and all(isinstance(one.value, list) for one in given)):
        return _all(path, given)
    return _agreed(path, given)


def _all(path: str, given: Sequence[Filled]) -> tuple[list[Any], list[Grounding]]:
    items: list[list[Filled]] = []
    for one in given:
        if isinstance(one.value, list):
            items += [[one.inner(number)] for number in range(len(one.value))]
            continue
        is_bool = isinstance(one.value, bool)  # true is not 1
        alike = (item for item in items if isinstance(item[0].value, bool) is is_bool)
        known = next((item for item in alike if item[0].value == one.value), None)
        if known:
            known.append(one)
        else:
            items.append([one])
    found = [_agreed(pointer(path, number), item) for number, item in enumerate(items)]
    return [value for value, _ in found], [leaf for _, leaves in found for leaf in leaves]


def _sum(path: str, given: Sequence[Filled]) -> tuple[Any, list[Grounding]]:
    """Add the numbers. The sum gets the grounding of the least certain one."""
    leaves = [leaf for one in given for leaf in _leaves(one, path) if type(leaf.value) in (int, float)]
    total = sum(leaf.value for leaf in leaves)
    if not leaves:
        return None, [Grounding(path=path, value=None)]
    sure = (Standing.AGREES, Standing.CONFIRMED)
    trust = [(leaf.standing in sure, -1.0 if leaf.confidence is None else leaf.confidence) for leaf in leaves]
    weakest = leaves[trust.index(min(trust))]
    summed = {
        "value": total,
        "pages": tuple(dict.fromkeys(page for leaf in leaves for page in leaf.pages)),
        "places": tuple(place for leaf in leaves for place in leaf.places),
    }
    return total, [weakest.model_copy(update=summed)]


def _agreed(path: str, given: Sequence[Filled]) -> tuple[Any, list[Grounding]]:
    alike: list[tuple[Any, list[Filled]]] = []
    for one in given:
        value = one.value  # true is not 1; of texts, case and blanks make no difference
        said = " ".join(value.casefold().split()) if isinstance(value, str) else (type(value) is bool, value)
        group = next((group for known, group in alike if known == said), None)
        if group:
            group.append(one)
        else:
            alike.append((said, [one]))
    groups = [group for _, group in alike]
    groups.sort(key=lambda group: (-sum(_weight(one) for one in group), group[0].page))
    chosen, *others = groups
    best = max(chosen, key=_weight)
    leaves = list(_leaves(best, path))
    if len(leaves) == 1 and leaves[0].path == path:
        agreeing = [one.leaf(path) for one in chosen]
        leaves[0] = leaves[0].model_copy(
            update={
                "pages": tuple(one.page for one in chosen),
                "places": tuple(place for leaf in agreeing for place in leaf.places),
                "conflicts": tuple(group[0].leaf(path) for group in others),
            }
        )
    return best.value, leaves


def _weight(one: Filled) -> int:
    """Return the weight of a page's value: more than all other pages if a witness agrees, less if it does not.

    A value that a person has confirmed outweighs all others.
    """
    leaf = one.grounding.get(one.path)
    standing = leaf.standing if leaf else None
    return {Standing.CONFIRMED: 100_000_000, Standing.AGREES: 10_000, None: 2}.get(standing, 1)


def _leaves(one: Filled, path: str) -> Iterator[Grounding]:
    """Yield the leaves of a page's value, at another path."""
    if isinstance(one.value, dict):
        for name in one.value:
            yield from _leaves(one.inner(name), pointer(path, name))
    elif isinstance(one.value, list):
        for number in range(len(one.value)):
            yield from _leaves(one.inner(number), pointer(path, number))
    else:
        yield one.leaf(path)
