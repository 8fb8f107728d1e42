"""A person corrects the documents of a bundle on its strip of pages, by keyboard alone, in a real browser.

With SCREENSHOTS=docs/images in the environment pictures of the page are kept there.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from pecia import Client, ReadBundle
from pecia_schemas.bundles import Subject
from tests.shared import bundle_files
from tests.shared.browsers import chromium, tab
from tests.shared.command import reviewing
from tests.shared.house import House

pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("shared_template")]

NOTES = [bundle_files.HOSPITAL, "and she is to come back in two weeks, if the cough", "has not gone by then."]
"""A page that names nobody."""


@contextmanager
def opened(address: str) -> Iterator[Page]:
    """Open an address in a browser."""
    with chromium() as browser, tab(browser, complains=True) as page:
        page.goto(address)
        yield page


def keep(page: Page, name: str) -> None:
    """Keep how it looks on a desk and on a phone."""
    for image in page.locator(".pages img").all():
        image.evaluate("image => image.decode()")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for size, suffix in (((390, 844), "-phone"), ((1280, 800), "")):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        if place := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(place) / f"{name}{suffix}.png", animations="disabled")


def test_a_bundle_is_corrected_by_keyboard_alone(
    client: Client, house: House, stores: dict[str, str]
) -> None:
    pile = bundle_files.pdf_of(
        [bundle_files.LAB, bundle_files.LAB_BACK, bundle_files.LETTER, NOTES, bundle_files.PRESCRIPTION]
    )
    name, _, record = bundle_files.MARY
    task = ReadBundle(pile, subject=Subject(name=name, record_numbers=(record,)))
    job = client.submit(task, label="pile.pdf")
    house.work_off(job)
    with reviewing(stores) as address, opened(address) as page:
        expect(page.locator("#list li").first).to_contain_text("pile.pdf · bundlepatient in conflict")
        page.keyboard.press("Enter")
        expect(page.locator("section.document")).to_have_count(3)
        expect(page.locator("section.conflict")).to_contain_text(bundle_files.JOHN[0])
        keep(page, "bundle")
        widths = page.locator(".pages img").evaluate_all("images => images.map(image => image.naturalWidth)")
        assert len(widths) == 5
        assert max(widths) <= 200, "the strip has thumbnails"
        put_right(page)

    bundle = job.result()
    assert bundle.split
    assert [document.part.pages for document in bundle.documents] == [(1,), (2,), (3,), (4, 5)]
    assert bundle.documents[1].part.kind == "consent"
    assert [(one.by, one.pages) for one in bundle.split.decisions] == [("eva", (3,))]
    assert not any(document.part.has_conflict for document in bundle.documents)


def put_right(page: Page) -> None:
    """Move page 4 to the prescription, cut page 2 off and call it a consent, and accept the letter."""
    status, third = page.get_by_role("status"), page.get_by_role("button", name="page 3")
    expect(third).to_have_attribute("aria-current", "true")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    expect(status).to_contain_text("revision 1")
    page.keyboard.press("ArrowLeft")
    expect(third).to_have_attribute("aria-current", "true")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("u")  # pages of two patients
    expect(page.get_by_role("alertdialog")).to_contain_text("different patients")
    expect(page.get_by_role("alertdialog")).not_to_contain_text("same_patient")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    expect(status).to_contain_text("revision 2")
    page.keyboard.press("t")
    page.keyboard.press("7")
    expect(status).to_contain_text("revision 3")
    page.keyboard.press("j")
    page.keyboard.press("a")
    expect(page.get_by_role("alertdialog")).to_be_visible()
    page.keyboard.type("her name before she married")
    page.keyboard.press("Enter")
    expect(status).to_contain_text("revision 4")
    expect(page.locator("section.conflict")).to_have_count(0)
    expect(page.locator("#doubts")).to_contain_text("by decision of eva: her name before she married")
