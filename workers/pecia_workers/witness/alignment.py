"""The alignment of a page's written tokens with those of its witness, in whatever order either has them.

1. Lines that are the same, then lines that have most in common, are laid upon each other; a token counts the more the
   rarer it is. So are runs of five, then three tokens that occur once on either side, and all that is equal around.
2. Two lines, and what lies between two runs, are aligned in order, at the least cost: tokens that are the same but for
   spaces and for what a recogniser confuses; else two readings of one place, if they are alike.
3. What is left is looked for where the rest of its line stands, and words that are long enough anywhere.

Each token of the witness serves once: a word that is written twice must be seen twice. Lines that have too little in
common are let go of again: rows of a table are alike by their nature.
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

_RUNS: Final = (5, 3)
_JOINED: Final = 4
"""Most tokens that are one on the other side."""
_JOIN: Final = 0.1
"""Costs of readings that are equal but for spaces, or but for signs that are easily confused."""
_MOST_WINDOW: Final = 10_000
"""Size of a table of costs; larger windows are split at equal tokens, or left unmatched."""
_REACH: Final = 40
"""Tokens of the witness beyond a run that are examined where the written text goes on otherwise."""
_ALIKE: Final = 0.67
"""Share of its signs that may differ in two readings of one place."""
_ROUNDS: Final = 2
_OF_A_NUMBER: Final = 0.5
_COMMON: Final = 0.35
"""Of the weight of their tokens, what two lines must have in common to be the same."""
_DISTINCTIVE: Final = 0.1
"""Weight of a token by which lines are found that may be the same."""
_LONG: Final = 4
"""Signs of a word that is known wherever it stands."""


_Lines: TypeAlias = dict[tuple[str, ...], list[range]]


class Alignment:
    """For each token on either side, those on the other, in order; empty: there is none."""

    def __init__(self, written: Sequence[Token], seen: Sequence[Token]) -> None:
        self.written, self.seen = written, seen
        self.to_seen: list[tuple[int, ...]] = [()] * len(written)
        self.to_written: list[tuple[int, ...]] = [()] * len(seen)
        self.differs: set[int] = set()
        """Written tokens that the witness read otherwise."""

    @property
    def free_lines(self) -> tuple[_Lines, _Lines]:
        """Of either side the lines of which nothing is matched, by what their tokens have in common."""
        return _free_lines(self.written, self.to_seen), _free_lines(self.seen, self.to_written)

    def match(self, written: Sequence[int], seen: Sequence[int], *, differs: bool = False) -> None:
        """Lay tokens that stand in a row upon each other."""
        for one in written:
            self.to_seen[one] = tuple(seen)
        for one in seen:
            self.to_written[one] = tuple(written)
        if differs:
            self.differs.update(written)

    def is_apart(self, one: int) -> bool:
        """Return whether a written token is matched with none, or with one token that has no other."""
        to = self.to_seen[one]
        return not to or (len(to) == 1 and self.to_written[to[0]] == (one,))

    def release(self, one: int) -> None:
        """Let go of a written token that is apart."""
        for other in self.to_seen[one]:
            self.to_written[other] = ()
        self.to_seen[one] = ()
        self.differs.discard(one)

    def match_all(self, written: Sequence[int], seen: Sequence[int]) -> None:
        """Lay tokens upon each other one by one."""
        for one, other in zip(written, seen, strict=True):
            self.match((one,), (other,))


def align(written: Sequence[Token], seen: Sequence[Token], comparison: Comparison) -> Alignment:
    """Return which tokens are which."""
    found = Alignment(written, seen)
    weights = {  # how much each says about where it is from: less the more there are, and little if a short number
        key: (_OF_A_NUMBER if key[-1].isdigit() and len(key) < _LONG else 1.0) / count
        for key, count in Counter(token.key for token in seen).items()
    }
    _whole_lines(found)
    _like_lines(found, weights, comparison)
    for length in _RUNS:
        ours, theirs = _runs(written, found.to_seen, length), _runs(seen, found.to_written, length)
        for start, other in [(start, theirs[keys]) for keys, start in ours.items() if keys in theirs]:
            if not any(found.to_seen[start : start + length] + found.to_written[other : other + length]):
                found.match_all(range(start, start + length), range(other, other + length))
                _grow(found, start + length, other + length, 1)
                _grow(found, start - 1, other - 1, -1)
    for _ in range(_ROUNDS):
        _gaps(found, comparison)
        _let_go(found, weights)
    _whole_lines(found, unique=False)
    _match_rest(found, comparison)
    return found


def _whole_lines(found: Alignment, *, unique: bool = True) -> None:
    """Match lines that are the same and free; of several, unless they are to be `unique`, the first with the first."""
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
    """Yield the places of the tokens of each line."""
    for _, group in groupby(range(len(tokens)), key=lambda one: tokens[one].line):
        yield list(group)


@dataclass(slots=True)
class _Weight:
    """What tokens weigh, and what of that is of words: a row is another one if its words are, whatever its numbers."""

    whole: float = 0.0
    words: float = 0.0

    def add(self, token: Token, weight: float) -> None:
        self.whole += weight
        self.words += 0.0 if token.is_number else weight

    def is_much_of(self, one: _Weight, other: _Weight, pick: Callable[[float, float], float]) -> bool:
        """Return whether it is enough of two lines, of the smaller or the larger one, for them to be the same."""
        words = pick(one.words, other.words) if min(one.words, other.words) >= _DISTINCTIVE else 0.0
        return self.whole >= _COMMON * pick(one.whole, other.whole) and self.words >= _COMMON * words


def _totals(tokens: Sequence[Token], weights: Mapping[str, float]) -> defaultdict[int, _Weight]:
    totals: defaultdict[int, _Weight] = defaultdict(_Weight)
    for token in tokens:
        totals[token.line].add(token, weights.get(token.key, 1.0))
    return totals


def _like_lines(found: Alignment, weights: Mapping[str, float], comparison: Comparison) -> None:
    """Lay lines upon each other that have most in common, the most alike first, and align them."""
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


def _runs(
    tokens: Sequence[Token], taken: Sequence[tuple[int, ...]], length: int
) -> dict[tuple[str, ...], int]:
    """Return where each run of free tokens starts that occurs once."""
    starts: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for start in range(len(tokens) - length + 1):
        if not any(taken[start : start + length]):
            starts[tuple(token.key for token in tokens[start : start + length])].append(start)
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
    """Align the free tokens between two matched ones, behind the first and before the second if these are apart."""
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
    """Yield the runs of ascending numbers without gaps."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield range(numbers[start], numbers[end - 1] + 1)
            start = end


def _window(found: Alignment, ours: range, theirs: range, comparison: Comparison) -> None:
    """Align two windows in order. A step costs 1 for each token that is left out, up to 1.5 for another reading."""
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
    """Yield the ways to a place: tokens of either side, whether they differ, and the cost."""
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
    """Return whether a token may be several from the first to the last; cheap, for most are not."""
    return len(whole.key) > 1 and (whole.key[0] == first.key[0] or whole.key[-1] == last.key[-1])


def _unlike(ours: Token, theirs: Token) -> float:
    """Return the share of signs that differ; a number is no reading of a word, but of one sign any other may be."""
    shorter, longer = sorted((len(ours.key), len(theirs.key)))
    if longer == 1:
        return _ALIKE
    may_be = ours.is_number == theirs.is_number or (ours.is_value and theirs.is_value)
    if not may_be or longer > 2 * shorter + 1:
        return 1.0
    is_far = at_least(ours.key, theirs.key) > _ALIKE * longer  # cheap, for most are
    return 1.0 if is_far else distance(ours.key, theirs.key) / longer


def _let_go(found: Alignment, weights: Mapping[str, float]) -> None:
    """Let go of tokens where a written line and one of the witness have too little in common: by chance."""
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
    """Look for a line's unmatched words in the witness's lines that have the rest of it, for long words anywhere."""
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
