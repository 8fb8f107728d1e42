"""Grounding of the values in a page's `fields` in the witness's words."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from pecia_schemas.blocks import Box, Doubt, DoubtReason, Grounding, Place, Standing
from pecia_schemas.merging import pointer
from pecia_schemas.misread import distance
from pecia_schemas.results import Page, Verdict
from pecia_workers.layout.lines import around, middle
from pecia_workers.witness.tokens import Token, WitnessText, tokens_of

_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        ("jan", "feb", "mar mär", "apr", "may mai", "jun", "jul", "aug", "sep", "oct okt", "nov", "dec dez"),
        1,
    )
    for name in names.split()
}
_NEGATION: Final = re.compile(
    r"(?i:no|not|non|nor|none|never|neither|without|den(?:y|ies|ied|ying)|kein\w*|nicht|ohne|sans)|[Pp]as|[Ss]in"
)
"""Words that deny those behind them; `PAS` is a stain."""
_REACH: Final = 3  # most words from a negation to the denied text
_ISO_DATE: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:T00:00(?::00)?Z?)?")
_LONGEST_DATE: Final = 5
"""Tokens of a date, as in `12 th of March 2024`."""
_ALIKE: Final = 0.34
"""Share of characters in which another reading of a value may differ."""
_LONG: Final = 3
"""Length of a value from which a similar one anywhere on the page counts as another reading of it."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: str
    value: Any
    group: str
    """The object or list that contains it: siblings are near each other on the page."""
    names: frozenset[str]
    """Words of its field name, which may be its label on the page."""


@dataclass(frozen=True, slots=True)
class _Spot:
    """A possible place of a value: tokens of the witness."""

    tokens: range
    box: Box
    standing: Standing


def with_grounded_fields(page: Page, witness: WitnessText) -> Page:
    """Return the page with a grounding for each leaf of its fields, and a doubt for each unconfirmed leaf."""
    if page.fields is None:
        return page
    found = tuple(_Search(witness, page.number).ground(page.fields))
    reasons: dict[Standing | None, DoubtReason] = {
        Standing.DIFFERS: DoubtReason.DISAGREES,
        Standing.NOT_ON_PAGE: DoubtReason.NOT_ON_PAGE,
    }
    doubts = [
        Doubt(
            reason=reasons[leaf.standing],
            box=leaf.places[0].box if leaf.places else None,
            text=str(leaf.value),
            other=leaf.other,
            on_value=not isinstance(leaf.value, str)
            or any(one.is_value for text in (leaf.value, leaf.other or "") for one in tokens_of(text)),
        )
        for leaf in found
        if leaf.standing in reasons
    ]
    verdict = Verdict.REVIEW if any(doubt.on_value for doubt in doubts) else Verdict.OK
    update = {"grounding": found, "doubts": (*page.doubts, *doubts)}
    return page.model_copy(update={**update, "verdict": Verdict.worst(page.verdict, verdict)})


class _Search:
    """Finds leaves on a page: first those with a single place, then the others, nearest to these or to their label."""

    def __init__(self, witness: WitnessText, page: int) -> None:
        self._witness, self._page = witness, page
        self._seen = [one.token for one in witness.seen]
        self._starts: defaultdict[str, list[int]] = defaultdict(list)
        for number, token in enumerate(self._seen):
            self._starts[token.key].append(number)

    def ground(self, fields: Mapping[str, Any]) -> Iterator[Grounding]:
        leaves = list(_leaves(fields, "", ""))
        spots = {leaf.path: self._spots(leaf.value) for leaf in leaves}
        chosen: dict[str, _Spot] = {}
        taken: set[int] = set()
        for leaf in sorted(leaves, key=lambda leaf: len(spots[leaf.path])):
            if spots[leaf.path]:
                siblings = [other.path for other in leaves if other.group == leaf.group]
                labels = [one for name in leaf.names for one in self._starts.get(name, ())]
                near = [middle(chosen[path].box) for path in siblings if path in chosen]
                near += [middle(self._witness.seen[one].box) for one in labels]
                away = []  # what stands in a row with one of these is nearer than what stands above it
                for spot in spots[leaf.path]:
                    across, down = middle(spot.box)
                    least = min((abs(across - x) + 5 * abs(down - y) for x, y in near), default=0.0)
                    away.append((spot.tokens.start in taken, least))
                chosen[leaf.path] = spots[leaf.path][away.index(min(away))]
                taken.add(chosen[leaf.path].tokens.start)
        strays = dict(self._strays(leaves, spots, chosen))
        for leaf in leaves:
            yield self._grounding(leaf, strays.get(leaf.path) or chosen.get(leaf.path))

    def _strays(
        self, leaves: Sequence[_Leaf], spots: Mapping[str, Sequence[_Spot]], chosen: Mapping[str, _Spot]
    ) -> Iterator[tuple[str, _Spot]]:
        """Yield values of items that are only in rows of other items' names, with the place from such a name on."""
        rows = {path: {self._witness.seen[one.tokens[0]].row for one in some} for path, some in spots.items()}
        names: dict[str, str] = {}
        for leaf in leaves:
            if leaf.group[-1:].isdigit() and str(leaf.value)[:1].isalpha() and leaf.path in chosen:
                names.setdefault(leaf.group, leaf.path)
        for leaf in leaves:
            own, spot = names.get(leaf.group, leaf.path), chosen.get(leaf.path)
            is_value = any(map(str.isdigit, str(leaf.value)))
            if own == leaf.path or not (is_value and spot) or rows[own] & rows[leaf.path]:
                continue
            row = self._witness.seen[spot.tokens[0]].row
            starts = [chosen[name].tokens[0] for name in names.values() if row in rows[name]]
            if before := [start for start in starts if start < spot.tokens[0]]:
                yield leaf.path, _Spot(range(max(before), spot.tokens.stop), spot.box, Standing.DIFFERS)

    def _grounding(self, leaf: _Leaf, spot: _Spot | None) -> Grounding:
        known: dict[str, Any] = {"path": leaf.path, "value": leaf.value, "pages": (self._page,)}
        if leaf.value is None or isinstance(leaf.value, bool) or not list(tokens_of(str(leaf.value))):
            return Grounding(**known)
        known["witness"] = self._witness.source
        if spot is None:
            return Grounding(**known, standing=Standing.NOT_ON_PAGE, confidence=0)
        seen = [self._witness.seen[number] for number in spot.tokens]
        sure = min(one.confidence for one in seen)
        agrees = spot.standing is Standing.AGREES
        return Grounding(
            **known,
            standing=spot.standing,
            places=(Place(page=self._page, box=spot.box),),
            other=None if agrees else " ".join(dict.fromkeys(one.word for one in seen)),
            confidence=sure if agrees else 1 - sure,
        )

    def _spots(self, value: Any) -> list[_Spot]:
        """Return the places of a value, or of nearly equal text if it has none."""
        if value is None or isinstance(value, bool):
            return []
        if isinstance(value, str):
            found = list(self._runs([*tokens_of(value)])) or list(self._dates(value))
        else:
            found = [range(n, n + 1) for n, token in enumerate(self._seen) if value in numbers_of(token)]
        standing = Standing.AGREES if found else Standing.DIFFERS
        denied = [
            range(start, run.stop) for run in found for start in self._negation_before(run.start, value)
        ]
        if denied and len(denied) == len(found):
            found, standing = denied, Standing.DIFFERS
        tokens = [*tokens_of(str(value))]
        ours = "".join(token.key for token in tokens)
        if not found and len(ours) >= _LONG:
            most = int(_ALIKE * len(ours))
            for start in range(len(self._seen) - len(tokens) + 1):
                window = self._seen[start : start + len(tokens)]
                theirs = "".join(token.key for token in window)
                same_kind = [one.is_number for one in window] == [one.is_number for one in tokens]
                if same_kind and abs(len(theirs) - len(ours)) <= most and distance(ours, theirs) <= most:
                    found.append(range(start, start + len(tokens)))
        seen = self._witness.seen
        return [_Spot(run, around(seen[number].box for number in run), standing) for run in found]

    def _negation_before(self, start: int, value: Any) -> Iterator[int]:
        """Yield the place of the negation that denies a text, if there is one in its line."""
        seen = self._witness.seen
        for place in range(start - 1, max(-1, start - 1 - _REACH), -1):
            box, following = seen[place].box, seen[place + 1].box
            is_near = seen[place].row == seen[start].row and following.left - box.right < box.bottom - box.top
            is_near &= seen[place].word[-1:].isalpha()
            if not (isinstance(value, str) and is_near and seen[start].token.key.isalpha()):
                return
            if _NEGATION.fullmatch(seen[place].word.lstrip("([")):
                yield place
                return

    def _runs(self, tokens: Sequence[Token]) -> Iterator[range]:
        """Yield the places of a sequence of tokens, compared by the witness's rules, ignoring spaces."""
        if not tokens:
            return
        same = self._witness.comparison.same
        firsts = (
            at
            for key, at in self._starts.items()
            if key == tokens[0].key or same(tokens[:1], [self._seen[at[0]]])
        )
        for start in sorted(number for at in firsts for number in at):
            end = start + len(tokens)
            pairs = zip(tokens, self._seen[start:end], strict=False)
            if end <= len(self._seen) and all(same([one], [other]) for one, other in pairs):
                yield range(start, end)
        joined = "".join(token.key for token in tokens)
        for start, token in enumerate(self._seen):
            if token.key != tokens[0].key and joined.startswith(token.key):
                for end in range(start + 1, min(start + len(tokens) + 3, len(self._seen) + 1)):
                    if "".join(one.key for one in self._seen[start:end]) == joined:
                        yield range(start, end)

    def _dates(self, value: str) -> Iterator[range]:
        """Yield the places of a date, `YYYY-MM-DD` in the field and in any format on the page."""
        found = _ISO_DATE.fullmatch(value)
        if not found:
            return
        year, month, day = map(int, found.groups())
        try:
            date(year, month, day)
        except ValueError:
            return
        years = (year, year % 100)
        with_name = {(day, one) for one in years}  # its numbers, if its month is a word
        dotted = {(year, month, day), *((day, month, one) for one in years)}
        others = dotted | {(month, day, one) for one in years}
        for start, token in enumerate(self._seen):
            if not token.is_number and token.key[:3] not in _MONTHS:
                continue
            for end in range(start + 1, start + 1 + _LONGEST_DATE):
                window = self._seen[start:end]
                numbers = tuple(int(part) for one in window for part in re.findall(r"\d+", one.key))
                months = [_MONTHS[one.key[:3]] for one in window if one.key[:3] in _MONTHS]
                written = "".join(one.word for one in self._witness.seen[start:end])
                plain = dotted if "." in written.rstrip(".") else others
                if numbers in with_name if months == [month] else not months and numbers in plain:
                    yield range(start, end)
                    break


def _leaves(value: Any, path: str, group: str) -> Iterator[_Leaf]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, pointer(path, name), path)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, pointer(path, number), path)
    else:
        names = frozenset(token.key for token in tokens_of(re.sub(r"[_\W]+|(?<=[a-z])(?=[A-Z])", " ", path)))
        yield _Leaf(path, value, group, names)


def numbers_of(token: Token) -> set[float]:
    """Return the numbers that a token may mean, with point or comma as decimal separator; empty if it is none."""
    numbers: set[float] = set()
    if token.is_number:
        texts = {token.key, token.key.replace(".", ""), token.text.replace(".", "").replace(",", ".")}
        for text in texts if re.fullmatch(r".*[.,]\d{3}", token.text) else {token.key}:
            with suppress(ValueError):
                numbers.add(float(text))
    return numbers
