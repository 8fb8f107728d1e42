"""The asynchronous client has the names, keywords and defaults of the other; what is compared is read, not listed."""

import inspect
import re
from collections.abc import Callable
from typing import Any, get_overloads

import pytest

from pecia import AsyncClient, AsyncJob, AsyncJobGroup, Client, Job, JobGroup

TWINS: list[tuple[type, type]] = [(Client, AsyncClient), (Job, AsyncJob), (JobGroup, AsyncJobGroup)]
CONTEXT = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
PURE = {
    "Client": {"__init__", "group"},
    "Job": {"__init__"},
    "JobGroup": {"__init__", "__getitem__", "__len__", "count", "index"},
}
"""Methods that do no I/O, and so are the same in both. `JobGroup`'s are those of a sequence."""

_TRANSLATED = [
    (r"\b(Job|JobGroup|Client|Connections)\b", r"Async\1"),
    (r"\bIterator\[(.*)\]", r"AsyncGenerator[\1, None]"),
    (r"^(Iterable)(\[Task\[R\] \| Submission\[R\]\])$", r"\1\2 | AsyncIterable\2"),
]


def public(kind: type) -> dict[str, Any]:
    """Return what a user can call on it or read of it, inherited or not."""
    special = {"__init__", "__getitem__", "__len__", *CONTEXT, *CONTEXT.values()}
    found = {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") or name in special
    }
    return {name: value for name, value in found.items() if callable(value) or isinstance(value, property)}


def translated(annotation: object) -> str:
    """Return the annotation as the asynchronous twin should have it."""
    text = str(annotation)
    for pattern, twin in _TRANSLATED:
        text = re.sub(pattern, twin, text)
    return text


def parameters(
    function: Callable[..., Any], translate: Callable[[Any], object] = str
) -> list[tuple[Any, ...]]:
    return [
        (parameter.name, parameter.kind, parameter.default, translate(parameter.annotation))
        for parameter in inspect.signature(function).parameters.values()
    ]


def methods() -> list[Any]:
    return [
        pytest.param(sync, twin, name, id=f"{sync.__name__}.{name}")
        for sync, twin in TWINS
        for name, value in public(sync).items()
        if inspect.isfunction(value)
    ]


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_both_have_the_same_public_names(sync: type, twin: type) -> None:
    assert {CONTEXT.get(name, name) for name in public(sync)} == set(public(twin))


@pytest.mark.parametrize(("sync", "twin", "name"), methods())
def test_both_take_and_return_the_same_once_it_is_awaited(sync: type, twin: type, name: str) -> None:
    mine, its = public(sync)[name], public(twin)[CONTEXT.get(name, name)]
    expected = translated(inspect.signature(mine).return_annotation)
    assert parameters(mine, translated) == parameters(its)
    assert str(inspect.signature(its).return_annotation) == expected
    streams = expected.startswith("AsyncGenerator")
    is_pure = name in PURE.get(sync.__name__, set())
    assert inspect.iscoroutinefunction(its) == (not streams and not is_pure)


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_what_costs_no_io_is_one_and_the_same_property(sync: type, twin: type) -> None:
    for name, value in public(sync).items():
        if isinstance(value, property):
            assert public(twin)[name] is value


def test_both_know_the_result_of_a_job_by_its_type_of_task() -> None:
    mine, its = get_overloads(Client.job), get_overloads(AsyncClient.job)
    assert [parameters(one, translated) for one in mine] == [parameters(one) for one in its]
    assert [inspect.signature(one).return_annotation for one in its] == ["AsyncJob[Any]", "AsyncJob[R]"]
