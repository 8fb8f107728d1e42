"""Alignment of a page's written tokens with those of its witness, whatever the order of either.

1. Equal lines, then the most similar lines, are matched; rare tokens have more weight. So are runs of three tokens that
   are unique on both sides, with all equal tokens around them.
2. Two lines, and the tokens between two runs, are aligned in order at the least cost: tokens that are equal except for
   spaces and easily confused characters, or similar readings of one place.
3. Remaining tokens are searched near the rest of their line, and long words anywhere.

Each token of the witness is used once: a word written twice must be seen twice. Matches of lines with too little in
common are undone, since rows of a table resemble each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Final, TypeAlias

from pecia_schemas.misread import at_least, distance
from pecia_workers.witness.tokens import Comparison, Token

_RUN: Final = 3
"""Tokens of a run."""
_JOINED: Final = 4
"""Most tokens that may match a single one."""
_JOIN: Final = 0.1
"""Costs of readings that differ only in spaces, or only in easily confused characters."""
_MOST_WINDOW: Final = 10_000
"""Most cells of a cost table; larger windows are split at equal tokens, or left unmatched."""
_REACH: Final = 40
"""Tokens of the witness examined after a run where the texts diverge."""
_ALIKE: Final = 0.67
"""Share of characters that may differ in two readings of one place."""
_ROUNDS: Final = 2
_OF_A_NUMBER: Final = 0.5
_COMMON: Final = 0.35
"""Share of their tokens' weight that two lines must have in common to be the same."""
_DISTINCTIVE: Final = 0.1
"""Least weight of a token by which similar lines are searched."""
_LONG: Final = 4
"""Characters from which a word is recognised anywhere on the page."""


_Lines: TypeAlias = dict[tuple[str, ...], list[range]]


class Alignment:
    """For each token of either side its matches on the other, in order; empty without a match."""

    def __init__(self, written: Sequence[Token], seen: Sequence[Token]) -> None:
        self.written, self.seen = written, seen
        self.to_seen: list[tuple[int, ...]] = [()] * len(written)
        self.to_written: list[tuple[int, ...]] = [()] * len(seen)
        self.differs: set[int] = set()
        """Written tokens that the witness read differently."""

    @property
    def free_lines(self) -> tuple[_Lines, _Lines]:
        """Unmatched lines of either side, by their tokens."""
        return _free_lines(self.written, self.to_seen), _free_lines(self.seen, self.to_written)

    def match(self, written: Sequence[int], seen: Sequence[int], *, differs: bool = False) -> None:
        """Match consecutive tokens with each other."""
        for one in written:
            self.to_seen[one] = tuple(seen)
        for one in seen:
            self.to_written[one] = tuple(written)
        if differs:
            self.differs.update(written)

    def is_apart(self, one: int) -> bool:
        """Return whether a written token is unmatched, or matched one to one."""
        to = self.to_seen[one]
        return not to or (len(to) == 1 and self.to_written[to[0]] == (one,))

    def release(self, one: int) -> None:
        """Undo the match of a written token that `is_apart`."""
        for other in self.to_seen[one]:
            self.to_written[other] = ()
        self.to_seen[one] = ()
        self.differs.discard(one)

    def match_all(self, written: Sequence[int], seen: Sequence[int]) -> None:
        """Match tokens pair by pair."""
        for one, other in zip(written, seen, strict=True):
            self.match((one,), (other,))


def align(written: Sequence[Token], seen: Sequence[Token], comparison: Comparison) -> Alignment:
    """Return the alignment of two token lists."""
    found = Alignment(written, seen)
    weights = {  # how much each says about where it is from: less the more there are, and little if a short number
        key: (_OF_A_NUMBER if key[-1].isdigit() and len(key) < _LONG else 1.0) / count
        for key, count in Counter(token.key for token in seen).items()
    }
    _whole_lines(found)
    _like_lines(found, weights, comparison)
    ours, theirs = _runs(written, found.to_seen), _runs(seen, found.to_written)
    for start, other in [(start, theirs[keys]) for keys, start in ours.items() if keys in theirs]:
        if not any(found.to_seen[start : start + _RUN] + found.to_written[other : other + _RUN]):
            found.match_all(range(start, start + _RUN), range(other, other + _RUN))
            _grow(found, start + _RUN, other + _RUN, 1)
            _grow(found, start - 1, other - 1, -1)
    for _ in range(_ROUNDS):
        _gaps(found, comparison)
        _let_go(found, weights)
    _whole_lines(found, unique=False)
    _match_rest(found, comparison)
    return found


def _whole_lines(found: Alignment, *, unique: bool = True) -> None:
    """Match equal unmatched lines; of several equal ones the first with the first, or none if `unique`."""
    ours, theirs = found.free_lines
    for keys, lines in ours.items():
        others = theirs.get(keys, [])
        if not unique or (len(lines) == len(others) == 1 and len(keys) > 1):
            for one, other in zip(lines, others, strict=False):
                found.match_all(one, other)


def _free_lines(tokens: Sequence[Token], taken: Sequence[tuple[int, ...]]) -> _Lines:
    lines: defaultdict[tuple[str, ...], list[range]] = defaultdict(list)
    for places in _by_line(tokens):
        if not any(taken[one] for one in places):
            lines[tuple(tokens[one].key for one in places)].append(range(places[0], places[-1] + 1))
    return lines


def _by_line(tokens: Sequence[Token]) -> Iterator[list[int]]:
    """Yield the range of token indices of each line."""
    for _, group in groupby(range(len(tokens)), key=lambda one: tokens[one].line):
        yield list(group)


@dataclass(slots=True)
class _Weight:
    """Weight of tokens, and of the words among them: rows with different words differ, whatever their numbers."""

    whole: float = 0.0
    words: float = 0.0

    def add(self, token: Token, weight: float) -> None:
        self.whole += weight
        self.words += 0.0 if token.is_number else weight

    def is_much_of(self, one: _Weight, other: _Weight, pick: Callable[[float, float], float]) -> bool:
        """Return whether it is a large enough share of two lines, the smaller or larger, for these to be the same."""
        words = pick(one.words, other.words) if min(one.words, other.words) >= _DISTINCTIVE else 0.0
        return self.whole >= _COMMON * pick(one.whole, other.whole) and self.words >= _COMMON * words


def _totals(tokens: Sequence[Token], weights: Mapping[str, float]) -> defaultdict[int, _Weight]:
    totals: defaultdict[int, _Weight] = defaultdict(_Weight)
    for token in tokens:
        totals[token.line].add(token, weights.get(token.key, 1.0))
    return totals


def _like_lines(found: Alignment, weights: Mapping[str, float], comparison: Comparison) -> None:
    """Match similar lines, the most similar first, and align their tokens."""
    ours, theirs = ([line for lines in side.values() for line in lines] for side in found.free_lines)
    totals = [_totals(tokens, weights) for tokens in (found.written, found.seen)]
    standing: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for key, number in (
        (found.seen[place].key, number) for number, line in enumerate(theirs) for place in line
    ):
        standing[key][number] += 1
    distinctive = {key: lines for key, lines in standing.items() if weights[key] >= _DISTINCTIVE}
    alike: list[tuple[float, int, int]] = []
    for number, line in enumerate(ours):
        common: defaultdict[int, _Weight] = defaultdict(_Weight)  # by distinctive tokens, with each of theirs
        used: Counter[tuple[int, str]] = Counter()
        for token in found.written[line.start : line.stop]:
            for other, times in distinctive.get(token.key, {}).items():
                used[other, token.key] += 1
                if used[other, token.key] <= times:
                    common[other].add(token, weights[token.key])
        for other, weight in common.items():
            both = totals[0][found.written[line[0]].line], totals[1][found.seen[theirs[other][0]].line]
            if weight.is_much_of(*both, max):
                alike.append((-weight.whole / max(one.whole for one in both), number, other))
    taken: set[int] = set()
    for _, number, other in sorted(alike):
        if other not in taken and not any(found.to_seen[place] for place in ours[number]):
            taken.add(other)
            _window(found, ours[number], theirs[other], comparison)


def _runs(tokens: Sequence[Token], taken: Sequence[tuple[int, ...]]) -> dict[tuple[str, ...], int]:
    """Return the start of each run of unmatched tokens that occurs once."""
    starts: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for start in range(len(tokens) - _RUN + 1):
        if not any(taken[start : start + _RUN]):
            starts[tuple(token.key for token in tokens[start : start + _RUN])].append(start)
    return {keys: places[0] for keys, places in starts.items() if len(places) == 1}


def _grow(found: Alignment, one: int, other: int, step: int) -> None:
    while (
        0 <= one < len(found.written)
        and 0 <= other < len(found.seen)
        and not found.to_seen[one]
        and not found.to_written[other]
        and found.written[one].key == found.seen[other].key
    ):
        found.match((one,), (other,))
        one, other = one + step, other + step


def _gaps(found: Alignment, comparison: Comparison) -> None:
    """Align the unmatched tokens between two matched ones: after the first and before the second if these are apart."""
    free = [number for number, to in enumerate(found.to_seen) if not to]
    for run in in_a_row(free):
        before = found.to_seen[run.start - 1][-1] if run.start else -1
        after = found.to_seen[run.stop][0] if run.stop < len(found.written) else len(found.seen)
        reach = len(run) + _REACH
        forth = range(before + 1, before + 1 + _free(found.to_written[before + 1 :][:reach]))
        back = range(after - _free(found.to_written[max(0, after - reach) : after][::-1]), after)
        if forth.stop == back.stop or (forth and back and back.start <= forth.start < back.stop):
            _window(found, run, range(min(forth.start, back.start), back.stop), comparison)
        else:
            _window(found, run, forth, comparison)
            for rest in in_a_row([number for number in run if not found.to_seen[number]]):
                _window(found, rest, back, comparison)


def _free(taken: Sequence[tuple[int, ...]]) -> int:
    return next((number for number, to in enumerate(taken) if to), len(taken))


def in_a_row(numbers: Sequence[int]) -> Iterator[range]:
    """Yield the runs of consecutive numbers."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield range(numbers[start], numbers[end - 1] + 1)
            start = end


def _window(found: Alignment, ours: range, theirs: range, comparison: Comparison) -> None:
    """Align two windows in order. A skipped token costs 1, a different reading up to 1.5."""
    written, seen = found.written[ours.start : ours.stop], found.seen[theirs.start : theirs.stop]
    if len(ours) * len(theirs) > _MOST_WINDOW:
        keys = [token.key for token in written], [token.key for token in seen]
        one = other = 0
        for block in SequenceMatcher(None, *keys, autojunk=True).get_matching_blocks():
            if (block.a - one) * (block.b - other) <= _MOST_WINDOW:
                _window(found, ours[one : block.a], theirs[other : block.b], comparison)
            one, other = block.a + block.size, block.b + block.size
            found.match_all(ours[block.a : one], theirs[block.b : other])
        return
    if not ours or not theirs:
        return
    rows, columns = len(ours) + 1, len(theirs) + 1
    costs = [[0.0] * columns for _ in range(rows)]
    steps: list[list[tuple[int, int, bool]]] = [[(0, 0, False)] * columns for _ in range(rows)]
    for row in range(rows):
        for column in range(columns):
            if row or column:
                costs[row][column], steps[row][column] = min(
                    (costs[row - down][column - across] + cost, (down, across, differs))
                    for down, across, differs, cost in _steps(written, seen, row, column, comparison)
                )
    row, column = len(ours), len(theirs)
    while row or column:
        down, across, differs = steps[row][column]
        row, column = row - down, column - across
        if down and across:
            found.match(ours[row : row + down], theirs[column : column + across], differs=differs)


def _steps(
    written: Sequence[Token], seen: Sequence[Token], row: int, column: int, comparison: Comparison
) -> Iterator[tuple[int, int, bool, float]]:
    """Yield the steps to a cell of the table: tokens of either side, whether they differ, and the cost."""
    if row:
        yield 1, 0, False, 1.0
    if column:
        yield 0, 1, False, 1.0
    if not (row and column):
        return
    ours, theirs = written[row - 1], seen[column - 1]
    if ours.key == theirs.key:
        yield 1, 1, False, 0.0
        return
    if comparison.same((ours,), (theirs,)):
        yield 1, 1, False, _JOIN
    elif (unlike := _unlike(ours, theirs)) <= _ALIKE:
        yield 1, 1, True, 0.5 + 1.5 * unlike
    for count in range(2, _JOINED + 1):
        several, others = written[max(0, row - count) : row], seen[max(0, column - count) : column]
        if row >= count and _may_join(theirs, several[0], ours) and comparison.same(several, (theirs,)):
            yield count, 1, False, _JOIN
        if column >= count and _may_join(ours, others[0], theirs) and comparison.same((ours,), others):
            yield 1, count, False, _JOIN


def _may_join(whole: Token, first: Token, last: Token) -> bool:
    """Return whether a token may equal several joined ones; a cheap test, since most do not."""
    return len(whole.key) > 1 and (whole.key[0] == first.key[0] or whole.key[-1] == last.key[-1])


def _unlike(ours: Token, theirs: Token) -> float:
    """Return the share of different characters; a number never reads as a word, except a single character."""
    shorter, longer = sorted((len(ours.key), len(theirs.key)))
    if longer == 1:
        return _ALIKE
    may_be = ours.is_number == theirs.is_number or (ours.is_value and theirs.is_value)
    if not may_be or longer > 2 * shorter + 1:
        return 1.0
    is_far = at_least(ours.key, theirs.key) > _ALIKE * longer  # cheap, for most are
    return 1.0 if is_far else distance(ours.key, theirs.key) / longer


def _let_go(found: Alignment, weights: Mapping[str, float]) -> None:
    """Undo matches between lines that have too little in common, as these arose by chance."""
    totals = [_totals(tokens, weights) for tokens in (found.written, found.seen)]
    common: defaultdict[tuple[int, int], _Weight] = defaultdict(_Weight)
    pairs = {
        (one, other): (found.written[one].line, found.seen[other].line)
        for one, to in enumerate(found.to_seen)
        for other in to
    }
    for (one, other), lines in pairs.items():
        if one not in found.differs:
            common[lines].add(found.seen[other], weights[found.seen[other].key])
    enough = {
        lines: common[lines].is_much_of(totals[0][lines[0]], totals[1][lines[1]], min)
        for lines in set(pairs.values())
    }
    kept = {pair for pair, lines in pairs.items() if enough[lines]}
    for step in (1, -1):  # a line may begin, or end, in another one of the witness; another reading ends it
        for one, other in list(pairs)[::step]:
            if one not in found.differs and (one - step, other - step) in kept:
                kept.add((one, other))
    kept_ours, kept_theirs = {one for one, _ in kept}, {other for _, other in kept}
    for one, other in pairs:
        if one not in kept_ours and other not in kept_theirs:
            found.to_seen[one] = found.to_written[other] = ()
            found.differs.discard(one)


def _match_rest(found: Alignment, comparison: Comparison) -> None:
    """Search a line's unmatched words in the witness's lines that match its rest, and long words anywhere."""
    free: defaultdict[int, list[int]] = defaultdict(list)
    for other in [number for number, to in enumerate(found.to_written) if not to]:
        free[found.seen[other].line].append(other)
    for places in _by_line(found.written):
        lines = {found.seen[other].line for one in places for other in found.to_seen[one]}
        near = [other for line in sorted(lines) for other in free[line]]
        for one in [place for place in places if not found.to_seen[place]]:
            for other in near:
                if not found.to_written[other] and comparison.same([found.written[one]], [found.seen[other]]):
                    found.match((one,), (other,))
                    break
    by_key = defaultdict(list)
    for number, token in reversed([*enumerate(found.seen)]):
        if not found.to_written[number]:
            by_key[token.key].append(number)
    for number, token in enumerate(found.written):
        if not found.to_seen[number] and not token.is_value and len(token.key) >= _LONG and by_key[token.key]:
            found.match((number,), (by_key[token.key].pop(),))
