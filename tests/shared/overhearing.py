"""Ears: what a fleet says where others can hear it, in Redis, in Celery's events and on Flower's pages."""

import base64
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
from celery.app.base import Celery
from flower.urls import handlers
from redis import Redis
from tornado.routing import URLSpec

from tests.shared.limits import WAIT_S

_STOP = "the tests have heard enough"
_TASK_TABLE = (
    "/tasks/datatable?draw=1&start=0&length=100&search[value]=&order[0][column]=0&order[0][dir]=asc"
    "&columns[0][data]=name"
)


@contextmanager
def redis_traffic(url: str) -> Iterator[list[str]]:
    """Every command that Redis gets during the block, with its arguments."""
    heard: list[str] = []
    with Redis.from_url(url) as redis, redis.monitor() as monitor:

        def listen() -> None:
            while not heard or _STOP not in heard[-1]:
                heard.append(str(monitor.connection.read_response()))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield heard
        finally:
            redis.echo(_STOP)
            thread.join()


@contextmanager
def celery_events(app: Celery) -> Iterator[list[dict[str, Any]]]:
    """Every event that workers send during the block, as Flower gets it."""
    heard: list[dict[str, Any]] = []
    ready, stop = threading.Event(), threading.Event()

    def listen() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": heard.append})
            with receiver.consumer_context() as (own, *_):
                ready.set()
                while not stop.is_set():
                    with suppress(TimeoutError):
                        own.drain_events(timeout=0.2)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        yield heard
    finally:
        stop.set()
        thread.join()


def redis_keys(url: str) -> str:
    """What is left in Redis: every key and its value."""
    whole = ("0", "-1")
    readers: dict[str, tuple[str, ...]] = {
        "string": ("GET",),
        "hash": ("HGETALL",),
        "set": ("SMEMBERS",),
        "list": ("LRANGE", *whole),
        "zset": ("ZRANGE", *whole),
    }
    left: list[str] = []
    with Redis.from_url(url, decode_responses=True) as redis:
        for key in map(str, redis.scan_iter()):
            command, *bounds = readers.get(str(redis.type(key)), ("TYPE",))  # it may have expired meanwhile
            left.append(f"{key}: {redis.execute_command(command, key, *bounds)}")
    return "\n".join(left)


def hears(flower: httpx2.Client) -> bool:
    """Whether Flower listens to both workers: its page is there before, and what they say until then is lost."""
    return len(flower.get("/workers?json=1").json()["data"]) > 1


def settled(flower: httpx2.Client) -> set[str]:
    tasks = flower.get("/api/tasks").json()
    return {part for part, task in tasks.items() if task["state"] in ("SUCCESS", "FAILURE")}


def flower_pages(flower: httpx2.Client, parts: list[str]) -> Iterator[str]:
    workers = list(flower.get("/api/workers?refresh=1").json())
    paths = ["/", "/workers", "/tasks", _TASK_TABLE, "/broker", "/metrics", "/api/tasks", "/api/workers"]
    paths += [f"/worker/{worker}" for worker in workers]
    paths += [path.format(part) for part in parts for path in ("/task/{}", "/api/task/info/{}")]
    for path in paths:
        answer = flower.get(path)
        assert answer.status_code == 200, path
        yield answer.text
    for path in flower_routes([*workers, *parts[:2]]):
        for method in ("GET", "POST"):
            yield flower.request(method, path).text


def flower_routes(names: list[str]) -> list[str]:
    """Every address that Flower knows but its own files, about each of these workers and parts."""
    patterns = [rule.regex.pattern if isinstance(rule, URLSpec) else rule[0] for rule in handlers]
    bare = [
        pattern.removesuffix("$").removesuffix("/?")
        for pattern in patterns
        if pattern.startswith("/") and "static" not in pattern
    ]
    return list(dict.fromkeys(re.sub(r"\(\.[+*]\)", name, pattern) for pattern in bare for name in names))


def told(words: Iterable[str], heard: str) -> list[str]:
    """Return those of the words that were heard, plainly or in disguise."""
    return [word for word in words if any(form in heard for form in disguises(word))]


def disguises(word: str) -> Iterator[str]:
    """A word as it is, and as it looks inside of base64."""
    yield word
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + word.encode()).decode()
        yield encoded[4 * bool(shift) : -4]
