"""A person reviews twenty doubtful pages by keyboard alone: what comes out of the result, the callback and eval.

With SCREENSHOTS=docs/images in the environment pictures of the page are kept there.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from pecia import Document, JobGroup, Prefer, ReadDocument, Submission, Webhook
from pecia.evaluation.scores import report
from pecia.evaluation.truth import exhibits
from pecia.webhooks import verify
from pecia_schemas.media import MediaType
from tests.shared.browsers import keep, tab
from tests.shared.chat_server import Behaviour, serving
from tests.shared.command import ran, reviewing
from tests.shared.fixture_types import RunFleet
from tests.shared.limits import WAIT_S, eventually
from tests.shared.receivers import Receiver, receiving
from tests.shared.witnessed_pages import KINDS, Drawn, drawn_page, lied_about

pytestmark = [pytest.mark.gate, pytest.mark.timeout(1_800)]

PAGES = 20
SWAPS = 3


@dataclass
class Archive:
    """What a model has read with swapped digits, and the truth about it."""

    fleet: Any
    drawn: list[Drawn]
    jobs: JobGroup[Document]
    folder: Path
    receiver: Receiver


@pytest.fixture(scope="module")
def archive(run_fleet: RunFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    drawn = [
        lied_about(drawn_page(KINDS[seed % 3], seed), seed, swaps=SWAPS, inventions=0, omissions=0)
        for seed in range(PAGES)
    ]
    answers = {f"page {number:02}": page.markdown() for number, page in enumerate(drawn)}
    folder = tmp_path_factory.mktemp("archive")
    for number, page in enumerate(drawn):
        (folder / f"{number:02}.pdf").write_bytes(page.pdf)
        true = "\n".join(" ".join(word.text for word in row.words) for row in page.rows)
        (folder / f"{number:02}.txt").write_text(true)
    with (
        receiving() as receiver,
        serving(Behaviour(answers=answers)) as server,
        run_fleet("review", engine="openai", engine_url=server.url, witness="layer") as fleet,
    ):
        tasks = [
            Submission(
                ReadDocument(
                    page.pdf,
                    prefer=Prefer.PIXELS,
                    prepare=(),
                    instructions=f"page {number:02}",
                    document_type="lab_result",
                ),
                label=f"ward-7/{number:02}.pdf",
            )
            for number, page in enumerate(drawn)
        ]
        hook: Any = {"url": receiver.url, "events": ["result.revised"]}
        jobs = fleet.client.submit_many(tasks, webhook=Webhook.model_validate(hook))
        jobs.wait(timeout=WAIT_S * 3)
        yield Archive(fleet, drawn, jobs, folder, receiver)


@contextmanager
def opened(browser: Browser, address: str, **how: Any) -> Iterator[Page]:
    with tab(browser, **how) as page:
        page.goto(address)
        expect(page.locator("#where")).to_contain_text("1 ")
        yield page


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def landmarks(page: Page) -> None:
    """A screen reader finds its way, and knows what everything is called."""
    for role in ("banner", "navigation", "main", "complementary", "status"):
        expect(page.get_by_role(role)).to_have_count(1)
    named = ", ".join(
        f"{kind}:visible" for kind in ("button", "textarea", "nav", "aside", "section", "[role=img]")
    )
    for element in page.locator(named).all():
        expect(element).to_have_accessible_name(re.compile("."))


def middle(element: Locator) -> tuple[float, float]:
    box = element.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def seen(page: Page) -> None:
    """Wait for the page's picture."""
    expect(page.locator("#picture")).to_have_attribute("aria-busy", "false")


def test_text_and_picture_lead_to_each_other(browser: Browser, archive: Archive) -> None:
    with reviewing(archive.fleet.environment) as address, opened(browser, address) as page:
        seen(page)
        landmarks(page)
        expect(page.locator("#list li").first).to_contain_text(re.compile(r"ward-7/\d\d\.pdf · page 1"))
        keep(page, "review")
        text = page.locator("#text [data-target='b0t3-4']").first
        place = page.locator("rect[data-target='b0t3-4']").first
        text.hover()
        expect(place).to_have_class(re.compile("hot"))
        place.hover(force=True)
        expect(text).to_have_class(re.compile("hot"))
        place.click(force=True)
        expect(page.locator("#entry")).to_have_value(text.inner_text())
        page.keyboard.press("ArrowRight")
        expect(page.locator("#entry")).to_have_value(
            page.locator("#text [data-target='b0t4-5']").inner_text()
        )
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Help")).to_be_visible()
        press(page, "Escape", "k")
        sheet = page.locator("#sheet")
        whole = sheet.get_attribute("viewBox")
        page.mouse.move(*middle(sheet))
        page.mouse.wheel(0, -240)
        expect(sheet).not_to_have_attribute("viewBox", whole or "")
        press(page, "0")
        expect(sheet).to_have_attribute("viewBox", whole or "")
        press(page, "z")
        keep(page, "review-zoomed")
        page.set_viewport_size({"width": 390, "height": 844})
        keep(page, "review-phone")


def test_it_fits_a_phone_and_speaks_korean(browser: Browser, archive: Archive) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "locale": "ko-KR", "has_touch": True}
    with reviewing(archive.fleet.environment) as address, opened(browser, address, **phone) as page:
        seen(page)
        landmarks(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        expect(page.get_by_label("수정")).to_be_in_viewport()
        page.get_by_role("button", name="다음 의심 (j)").tap()
        expect(page.locator("#where")).to_contain_text("2 / 3")


def test_twenty_pages_are_reviewed_by_keyboard_alone(browser: Browser, archive: Archive) -> None:
    before = figures(archive)
    with reviewing(archive.fleet.environment) as address, opened(browser, address) as page:
        expect(page.locator("#list li")).to_have_count(PAGES)
        for number in range(PAGES):
            expect(page.locator("#where")).to_contain_text(f"{number + 1} of {PAGES}")
            review(page)
            press(page, "n")
    after = figures(archive)

    for job, drawn in zip(archive.jobs, archive.drawn, strict=True):
        document = job.result(timeout=0)
        assert sorted(document.text.split()) == sorted(word.text for row in drawn.rows for word in row.words)
        assert document.pages[0].verdict == "ok"
        assert document.revision >= SWAPS
    assert "revision" in printed(archive, "result", str(archive.jobs[0].id))
    assert "revision" not in printed(archive, "result", "--original", str(archive.jobs[0].id))
    eventually(lambda: len(revised(archive)) == sum(job.result(timeout=0).revision for job in archive.jobs))
    assert {data.job_id for data in revised(archive)} == {job.id for job in archive.jobs}
    assert (before["numbers"] < 1, after["numbers"], after["cer"]) == (True, 1.0, 0.0)
    assert {entry.actor for entry in archive.fleet.client.audit() if entry.action == "revised"} == {
        "client:eva"
    }


def review(page: Page) -> None:
    """Take what the witness read wherever it read something else; nothing else is in doubt."""
    while page.locator("#text .doubted").count():
        before = page.locator("#text .doubted").count()
        said = page.locator("#reason").inner_text()
        if said == "Another reading differs":
            press(page, "e", "Enter")
        else:
            press(page, "a")
        expect(page.locator("#text .doubted")).not_to_have_count(before)


def revised(archive: Archive) -> list[Any]:
    secret = archive.fleet.webhook_secret
    requests = list(archive.receiver.requests)
    return [verify(one.body, one.headers, secret).data for one in requests]


def printed(archive: Archive, *arguments: str) -> str:
    done = ran(sys.executable, "-m", "pecia", *arguments, env=archive.fleet.environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(archive: Archive) -> dict[str, Any]:
    """What `pecia eval` says of the jobs as they are now."""
    earlier = archive.folder.parent / "earlier.json"
    if not earlier.exists():
        shown = list(
            exhibits(archive.folder, ((path, MediaType.PDF) for path in sorted(archive.folder.glob("*.pdf"))))
        )
        earlier.write_text(report(shown, archive.jobs).model_dump_json())
    found = json.loads(printed(archive, "eval", str(archive.folder), "--of", str(earlier), "--json"))
    summary: dict[str, Any] = found["kinds"]["all"]
    return summary
