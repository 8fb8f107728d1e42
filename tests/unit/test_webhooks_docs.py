"""What docs/webhooks.md shows can be run, and what it says of the schedule is true."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from pecia import JobNotice, ReadDocument
from pecia.testing import FakeFleet
from pecia_schemas.settings import WorkerSettings
from pecia_workers.webhooks.schedule import RetrySchedule
from snippets import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()


def test_the_snippets_run_one_after_the_other() -> None:
    with FakeFleet() as fleet:
        names: dict[str, Any] = {"client": fleet.client(), "timedelta": timedelta}
        first, *others = blocks(PAGE, "python")
        exec(first, names)  # noqa: S102  the page
        fleet.client().submit(ReadDocument(b"a scan"))
        (callback,) = fleet.callbacks
        names |= {"headers": callback.headers, "body": callback.body}
        for block in others:
            exec(block, names)  # noqa: S102  the page
        assert names["notice"].type == "part.done"
        assert fleet.client().endpoints() == []


def test_the_notice_that_is_shown_is_one() -> None:
    (shown,) = blocks(PAGE, "json")
    notice = JobNotice.model_validate_json(shown)
    assert notice.model_dump(exclude_unset=True).keys() == json.loads(shown).keys()
    assert notice.data.model_fields_set == set(type(notice.data).model_fields)


def test_the_schedule_takes_two_days_and_a_half() -> None:
    settings = WorkerSettings()
    schedule = RetrySchedule(first=settings.webhook_retry_delay, longest=settings.webhook_retry_longest)
    waits = [schedule.after(attempt).total_seconds() for attempt in range(1, settings.webhook_attempts)]
    days = sum(waits) / timedelta(days=1).total_seconds()
    assert 0.8 * 2.5 < days < 1.2 * 2.5
    assert timedelta(days=days) < settings.webhook_give_up
