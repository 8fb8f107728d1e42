"""Compares identities of patients by names, birth dates and numbers, tolerant of spelling and misreading.

A claim is the identity of a patient in one place of a page. The table `_RULES` judges two claims; a single equal sign
never makes them the same.
"""

import datetime as dt
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from itertools import permutations
from typing import Final

from pecia_schemas.bundles import Identity, IdentityPlace, IdentitySign, Likeness, Subject
from pecia_schemas.misread import at_least, distance, shape_of

Births = frozenset[dt.date]
"""A date of birth with its other readings: in 03/04/1961, day and month may be swapped."""


class Relation(StrEnum):
    """Relation of one sign in two claims."""

    EQUAL = "E"
    PARTIAL = "P"
    """For names: one is an initial, a part or a masked form of the other."""
    NEAR = "N"
    """Equal except for one letter or digit."""
    APART = "A"
    MISSING = "-"
    """One of the claims lacks the sign."""

    @property
    def contradicts(self) -> bool:
        """Whether both claims have the sign and differ in it."""
        return self in (Relation.NEAR, Relation.APART)


_RULES: Final[tuple[tuple[str, str, str, Likeness], ...]] = (
    # names, births, numbers: the first matching row decides
    ("EP", "EN", "E", Likeness.SAME),
    ("E", "E", "N-", Likeness.SAME),
    ("E", "-", "EN", Likeness.SAME),
    ("P", "-", "E", Likeness.SAME),
    ("N", "E-", "E", Likeness.SAME),
    ("-", "EN", "E", Likeness.SAME),
    ("EPNA-", "A", "E", Likeness.UNKNOWN),  # misread, or records were mixed up
    ("A", "EN-", "E", Likeness.UNKNOWN),  # married, or misread
    ("A", "EPNA-", "NA-", Likeness.DIFFERENT),
    ("EPN-", "A", "NA-", Likeness.DIFFERENT),
    ("N", "EN-", "A", Likeness.DIFFERENT),  # twins, brothers and sisters
    ("EP", "N", "A", Likeness.DIFFERENT),
    ("-", "N-", "A", Likeness.DIFFERENT),
)
"""All other combinations are `unknown`."""


@dataclass(slots=True)
class Claim:
    """The signs of one patient, in comparable form."""

    name: str = ""
    births: Births = frozenset()
    numbers: dict[str, set[str]] = field(default_factory=dict)
    """Record numbers and personal insurance numbers, by their system."""
    policies: set[str] = field(default_factory=set)
    """Insurance numbers that a family may share. They neither separate claims nor make them the same."""
    places: list[IdentityPlace] = field(default_factory=list)

    def merge(self, other: "Claim") -> None:
        """Add signs of another claim that this one lacks, and a more complete name."""
        if not self.name or (
            len(name_parts(other.name)) > len(name_parts(self.name))
            and name_relation(self.name, other.name) in "EP"
        ):
            self.name = other.name or self.name
        self.births = (self.births & other.births) or self.births or other.births
        for system, values in other.numbers.items():
            self.numbers.setdefault(system, set()).update(values)
        self.policies |= other.policies
        self.places += other.places


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing two claims."""

    likeness: Likeness
    contradicts: bool
    """Whether a sign differs without excuse by the others, so that a person must check."""


def compare(one: Claim, other: Claim) -> Comparison:
    """Compare two claims by the table."""
    names = name_relation(one.name, other.name)
    births = birth_relation(one.births, other.births)
    numbers = number_relation(one.numbers, other.numbers)
    return _judged(names, births, numbers)


@cache
def _judged(names: Relation, births: Relation, numbers: Relation) -> Comparison:
    verdicts = (
        verdict
        for of_names, of_births, of_numbers, verdict in _RULES
        if names in of_names and births in of_births and numbers in of_numbers
    )
    likeness = next(verdicts, Likeness.UNKNOWN)
    differs = names.contradicts or births.contradicts or numbers.contradicts
    return Comparison(likeness, differs and likeness is not Likeness.SAME)


def likeness_across(one: Claim, other: Claim) -> Likeness:
    """Return whether two documents belong to one patient. Near numbers do not count as misread here."""
    likeness = compare(one, other).likeness
    is_near = number_relation(one.numbers, other.numbers) is Relation.NEAR
    return Likeness.UNKNOWN if is_near and likeness is Likeness.SAME else likeness


def only_same(claim: Claim, known: Iterable[Claim]) -> int | None:
    """Return which of the known, counted from 1, alone is surely of the same patient."""
    same = [n for n, one in enumerate(known, 1) if likeness_across(claim, one) is Likeness.SAME]
    return same[0] if len(same) == 1 else None


def is_expected(expected: Claim, claim: Claim) -> bool:
    """Return whether a document belongs to the patient that the caller expects.

    That is so if the claims are the same by the table, or equal in the only sign that the caller gave.
    """
    told = []
    if expected.name:
        told.append(name_relation(expected.name, claim.name))
    if expected.births:
        told.append(birth_relation(expected.births, claim.births))
    if expected.numbers:
        told.append(number_relation(expected.numbers, claim.numbers))
    return compare(expected, claim).likeness is Likeness.SAME or told == [Relation.EQUAL]


def claim_of(identity: Identity | Subject) -> Claim:
    """Return an identity as a claim. The form of a number determines its system."""
    numbers: dict[str, set[str]] = {}
    for written in identity.record_numbers:
        key = number_key(written)
        numbers.setdefault(_form(key), set()).add(key)
    policies = set(map(number_key, identity.insurance_numbers))
    for key in filter(is_personal, policies):
        numbers.setdefault("insurance", set()).add(key)
    births = frozenset({identity.birth_date} if identity.birth_date else ())
    return Claim(identity.name or "", births, numbers, policies)


def identity_of(claim: Claim) -> Identity:
    """Return a claim as an identity for storage, with the first spelling of each value."""
    texts: dict[IdentitySign, dict[str, str]] = {sign: {} for sign in IdentitySign}
    for place in claim.places:
        texts[place.sign].setdefault(number_key(place.text), place.text)
    return Identity(
        name=claim.name or None,
        birth_date=min(claim.births) if claim.births else None,
        record_numbers=tuple(texts[IdentitySign.RECORD_NUMBER].values()),
        insurance_numbers=tuple(texts[IdentitySign.INSURANCE_NUMBER].values()),
        places=tuple(claim.places),
    )


_LONG_NAME: Final = 7
_TITLE_WORDS: Final = (
    "mr mrs ms miss mx dr prof med dent sir madam herr herrn frau fraulein m mme mlle sr sra srta "
    "don dona jr sen von van de der den zu zum del la le di da dos 님 씨 귀하 군 양"
)
_TITLES: Final = frozenset(_TITLE_WORDS.split())
_HANGUL: Final = re.compile(r"[\uac00-\ud7a3]")
_PART: Final = re.compile(r"[^\W_]+|[*○◯]+")
_DIGRAPHS: Final = (("ae", "a"), ("oe", "o"), ("ue", "u"), ("ph", "f"))
_LETTERS: Final = str.maketrans(
    {"ß": "ss", "ø": "o", "æ": "a", "œ": "o", "ł": "l", "đ": "d", "\u0131": "i", "þ": "th"}
)
_HONORIFIC: Final = re.compile(r"(?<=[\uac00-\ud7a3]{2})\s*(님|씨|귀하|군|양)$")


@lru_cache(maxsize=4096)
def name_parts(name: str) -> tuple[str, ...]:
    """Return the words of a name without titles, accents and case. Müller, Mueller and Muller give the same words."""
    bare = _HONORIFIC.sub("", unicodedata.normalize("NFKC", name).strip())
    if _HANGUL.search(bare):
        return tuple(part for part in _PART.findall(bare) if part not in _TITLES)
    plain = unicodedata.normalize("NFKD", bare.casefold().translate(_LETTERS))
    plain = "".join(sign for sign in plain if not unicodedata.combining(sign))
    parts = [
        part for part in _PART.findall(plain.replace("'", "").replace("\u2019", "")) if part not in _TITLES
    ]
    for pair, sign in _DIGRAPHS:
        parts = [part.replace(pair, sign) for part in parts]
    return tuple(parts)


@lru_cache(maxsize=8192)
def name_relation(one: str, other: str) -> Relation:  # noqa: PLR0911  a return for each way to write a name
    """Return the relation of two names, in any order of their words."""
    parts, others = name_parts(one), name_parts(other)
    if not parts or not others:
        return Relation.MISSING
    hangul, of_other = _HANGUL.search("".join(parts)), _HANGUL.search("".join(others))
    if bool(hangul) != bool(of_other):
        return _across_scripts(parts if hangul else others, others if hangul else parts)
    if "".join(sorted(parts)) == "".join(sorted(others)) or _joined_alike(parts, others):
        return Relation.EQUAL
    if any(sign in "*○◯" for sign in "".join(parts + others)):
        return _masked("".join(parts), "".join(others))
    if hangul:  # each letter is a syllable, and a family may share two of three
        whole, against = "".join(parts), "".join(others)
        if min(len(whole), len(against)) == 1:
            return Relation.PARTIAL if whole[0] == against[0] else Relation.APART
        return Relation.NEAR if distance(whole, against) == 1 else Relation.APART
    return _words_relation(list(parts), list(others))


def _joined_alike(parts: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return whether both names are equal except for spaces, order, and characters that a recogniser confuses."""
    if len(parts) > 4 or len(others) > 4:  # noqa: PLR2004  more would have too many orders
        return shape_of("".join(parts)) == shape_of("".join(others))
    wanted = shape_of("".join(others))
    return any(shape_of("".join(order)) == wanted for order in permutations(parts))


def _words_relation(parts: list[str], others: list[str]) -> Relation:
    shapes = {part: shape_of(part) for part in parts + others}
    equal = 0
    for part in list(parts):
        match = next((word for word in others if shapes[word] == shapes[part]), None)
        if match is not None:
            equal += 1
            parts.remove(part)
            others.remove(match)
    initials = 0
    for part in sorted(parts, key=len, reverse=True):
        match = next((word for word in others if 1 in (len(word), len(part)) and word[0] == part[0]), None)
        if match is not None:
            initials += 1
            parts.remove(part)
            others.remove(match)
    if not (parts and others):  # one name has additional words
        if equal > 1 and not initials:
            return Relation.EQUAL
        return Relation.PARTIAL if equal else Relation.APART
    if any(1 in (len(part), len(word)) for part in parts for word in others) and not equal:
        return Relation.APART
    part, word = min(((part, word) for part in parts for word in others), key=lambda pair: distance(*pair))
    if (
        distance(part, word) <= (2 if min(len(part), len(word)) > _LONG_NAME else 1)
        and min(len(parts), len(others)) == 1
    ):
        return Relation.NEAR if equal or initials or distance(part, word) == 1 else Relation.APART
    whole, against = "".join(sorted(parts)), "".join(sorted(others))
    return (
        Relation.NEAR if at_least(whole, against) <= 1 and distance(whole, against) <= 1 else Relation.APART
    )


def _masked(one: str, other: str) -> Relation:
    if len(one) != len(other):
        return Relation.PARTIAL if one[0] == other[0] else Relation.APART
    pairs = zip(one, other, strict=True)
    fits = all(
        sign == against or "*" in (pair := sign + against) or "○" in pair or "◯" in pair
        for sign, against in pairs
    )
    return Relation.PARTIAL if fits else Relation.APART


_LETTERS_OF_HANGUL: Final = (
    "g,kk,n,d,tt,r,m,b,pp,s,ss,,j,jj,ch,k,t,p,h",
    "a,ae,ya,yae,eo,e,yeo,ye,o,wa,wae,oe,yo,u,wo,we,wi,yu,eu,ui,i",
    ",k,k,k,n,n,n,t,l,k,m,p,l,l,p,l,m,p,p,t,t,ng,t,t,k,t,p,t",
)
"""Latin letters for Hangul in the order of Unicode: initial consonants, vowels, final consonants."""
_ONSETS, _VOWELS, _CODAS = (letters.split(",") for letters in _LETTERS_OF_HANGUL)
_SURNAMES: Final = dict(
    zip("이박최노임유우오", ["lee", "park", "choi", "noh", "lim", "yoo", "woo", "oh"], strict=True)
)
_SOUNDS_ALIKE: Final = (
    "oo>u ee>i ou>u yeo>io you>io eo>o eu>u ae>a ck>k g>k b>p d>t r>l j>ch oh>o ch>c y>i u>o oi>o e>a ii>i"
)
_SOUNDS: Final = [pair.split(">") for pair in _SOUNDS_ALIKE.split()]
"""Latin spellings of the same Korean sound, with the one that replaces them."""


def _latin(syllable: str) -> str:
    code = ord(syllable) - 0xAC00
    return _ONSETS[code // 588] + _VOWELS[code % 588 // 28] + _CODAS[code % 28]


def _sound(written: str) -> str:
    for pair, sign in _SOUNDS:
        written = written.replace(pair, sign)
    return written


def _across_scripts(hangul: tuple[str, ...], latin: tuple[str, ...]) -> Relation:
    """Compare a name in Hangul with one in Latin letters by its sound."""
    whole = "".join(hangul)
    if not all(map(_HANGUL.match, whole)):
        return Relation.PARTIAL if any(sign in "*○◯" for sign in whole) else Relation.APART
    given = "".join(map(_latin, whole[1:]))
    written = ["".join(order) for order in permutations(latin[:4])]
    spoken = {
        _sound(family + given) for family in (_SURNAMES.get(whole[0], _latin(whole[0])), _latin(whole[0]))
    }
    least = min(distance(sound, _sound(name)) for sound in spoken for name in written)
    return Relation.EQUAL if least == 0 else Relation.PARTIAL if least <= 1 else Relation.APART


def birth_relation(one: Births, other: Births) -> Relation:
    """Return the relation of two dates of birth."""
    if not one or not other:
        return Relation.MISSING
    if one & other:
        return Relation.EQUAL
    near = (_is_near(f"{date:%Y%m%d}", f"{against:%Y%m%d}") for date in one for against in other)
    return Relation.NEAR if any(near) else Relation.APART


_SAME_SHAPE: Final = str.maketrans("OQDILZSBG", "000112586")
_LEAST_LONG: Final = 5


@lru_cache(maxsize=4096)
def number_key(written: str) -> str:
    """Return a number in a uniform spelling: without spaces and strokes, with digits for similar letters."""
    return "".join(filter(str.isalnum, written.upper())).translate(_SAME_SHAPE)


def is_personal(key: str) -> bool:
    """Return whether an insurance number identifies one person, as those of Germany and of the NHS do."""
    return re.fullmatch(r"[A-Z\d]\d{9}", key) is not None


def _form(key: str) -> str:
    """Return the form of a number. Numbers of one system have the same form."""
    return re.sub(r"\d", "9", key)


def number_relation(one: Mapping[str, Iterable[str]], other: Mapping[str, Iterable[str]]) -> Relation:
    """Return the relation of two claims' numbers: equal if they share one of any system."""
    if {key for keys in one.values() for key in keys} & {key for keys in other.values() for key in keys}:
        return Relation.EQUAL
    pairs = [
        (key, against)
        for system in one.keys() & other.keys()
        for key in one[system]
        for against in other[system]
    ]
    if not pairs:
        return Relation.MISSING
    near = (min(map(len, pair)) >= _LEAST_LONG and _is_near(*pair) for pair in pairs)
    return Relation.NEAR if any(near) else Relation.APART


def _is_near(one: str, other: str) -> bool:
    """Return whether two different texts differ in one character: replaced, inserted or deleted."""
    place = next(
        (place for place, (sign, against) in enumerate(zip(one, other, strict=False)) if sign != against), -1
    )
    if place < 0:
        return abs(len(one) - len(other)) == 1
    rest, against = one[place:], other[place:]
    return rest[1:] == against[1:] or rest[1:] == against or rest == against[1:]
