"""A person who has only a browser reads twenty files, corrects three doubts and downloads what was read.

With SCREENSHOTS=docs/images in the environment pictures of the page are kept there.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Page, expect

from pecia.accounts import Scope
from pecia_workers.commands.up import web_link
from tests.shared.browsers import keep, tab
from tests.shared.chat_server import Behaviour, serving
from tests.shared.command import run_pecia
from tests.shared.fixture_types import RunFleet
from tests.shared.http_doubles import free_port
from tests.shared.limits import WAIT_S
from tests.shared.npm_files import Download, fetched
from tests.shared.pictures import encoded

pytestmark = [pytest.mark.gate, pytest.mark.timeout(900)]

READ: Final = "Amoxicillin 500 mg"
STANDS: Final = "Amoxicillin 600 mg"
FILES: Final = 20
DOUBTFUL: Final = (11, 17, 18)
BROKEN: Final = 19
AXE: Final = Download(
    package="axe-core@4.14.1",
    member="package/axe.min.js",
    sha256="29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
)


@pytest.fixture(scope="module")
def fleet(run_fleet: RunFleet) -> Iterator[Any]:
    with (
        serving(Behaviour(text=READ)) as server,
        run_fleet(
            "web",
            gateway=True,
            gateway_port=free_port(),
            engine="openai",
            engine_url=server.url,
            witness="ocr",
        ) as fleet,
    ):
        yield fleet


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with tab(browser) as page:
        yield page


def slip(text: str) -> bytes:
    image = Image.new("RGB", (900, 300), "white")
    ImageDraw.Draw(image).text((80, 110), text, fill="black", font_size=48)
    return encoded(image, "PNG")


def key_of(fleet: Any, tenant: str) -> str:
    scopes = [word for scope in (Scope.SUBMIT, Scope.READ, Scope.REVIEW) for word in ("--scope", scope)]
    made = run_pecia("access", "create", "eva", "--tenant", tenant, *scopes, "--json", env=fleet.environment)
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["key"])


def sign_in(page: Page, fleet: Any, tenant: str) -> None:
    page.goto(fleet.fleet.gateway)
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    page.keyboard.type(key_of(fleet, tenant))
    page.keyboard.press("Enter")
    expect(page.locator("#who")).to_contain_text(f"{tenant} / eva")


def faults_of(page: Page) -> list[str]:
    """What axe-core finds that keeps people out."""
    page.evaluate(fetched(AXE).read_text())
    found = page.evaluate("axe.run(document)")
    return [one["id"] for one in found["violations"] if one["impact"] in ("serious", "critical")]


def test_twenty_files_three_doubts_and_a_download(page: Page, fleet: Any, tmp_path: Path) -> None:
    files = []
    for number in range(FILES):
        path = tmp_path / f"{number:02}.png"
        path.write_bytes(slip(STANDS if number in DOUBTFUL else READ))
        files.append(path)
    files[BROKEN].write_bytes(files[BROKEN].read_bytes()[:200])
    sign_in(page, fleet, "ward-7")
    assert faults_of(page) == []
    page.get_by_label("Batch name").fill("rounds")
    page.locator("#files").set_input_files(files)
    expect(page.get_by_role("status")).to_contain_text("20 of 20 sent")
    read = re.compile("19 done.*1 failed|1 failed.*19 done")
    expect(page.locator("#counts")).to_contain_text(read, timeout=WAIT_S * 1000)
    expect(page.locator("#rows tr", has_text="to review")).to_have_count(len(DOUBTFUL))
    expect(page.locator("#rows tr", has_text="19.png")).to_contain_text(
        re.compile("corrupt|unreadable|damaged")
    )
    keep(page, "web")
    assert faults_of(page) == []
    for number in DOUBTFUL:
        page.get_by_role("link", name=f"Pages and text: {number:02}.png").click()
        expect(page.locator("#reason")).to_have_text("Another reading differs")
        page.keyboard.press("e")
        expect(page.locator("#entry")).to_have_value(re.compile("600"))
        if number == DOUBTFUL[0]:
            expect(page.locator("#picture")).to_have_attribute("aria-busy", "false")
            keep(page, "web-correct")
        page.keyboard.press("Enter")
        expect(page.locator("#reason")).to_contain_text("No doubt is left")
        page.get_by_role("link", name="All jobs").click()
    expect(page.locator("#rows tr", has_text="to review")).to_have_count(0)
    with page.expect_download() as coming:
        page.get_by_label(f"Download as: {DOUBTFUL[0]:02}.png").select_option("text")
    assert coming.value.suggested_filename == f"{DOUBTFUL[0]:02}.txt"
    assert coming.value.path().read_text().strip() == STANDS
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    keep(page, "web-phone")


def test_another_tenant_sees_nothing_and_who_leaves_is_out(page: Page, fleet: Any) -> None:
    sign_in(page, fleet, "ward-8")
    expect(page.locator("#rows")).to_contain_text("No jobs yet.")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Key", exact=True)).to_be_focused()
    page.reload()
    expect(page.get_by_label("Key", exact=True)).to_be_visible()


def test_a_link_signs_in_and_leaves_no_key_in_the_address(browser: Browser, fleet: Any) -> None:
    with tab(browser, complains=True, locale="ko-KR") as page:
        link = web_link(fleet.fleet)
        assert link is not None
        page.goto(link)
        expect(page.get_by_role("button", name="로그아웃")).to_be_visible()
        expect(page.locator("#who")).to_contain_text("local / browser")
        expect(page.locator("#rows")).to_have_css("word-break", "keep-all")
        assert page.url == f"{fleet.fleet.gateway}/"
        page.goto(f"{fleet.fleet.gateway}/#pecia_x_y")
        expect(page.get_by_role("status")).to_contain_text("The key does not exist")
    secret = link.split("_", 2)[2]
    kept = [path for path in fleet.fleet.home.path.rglob("*") if path.suffix == ".log"]
    assert kept
    assert not any(secret in path.read_text(errors="replace") for path in kept)
