"""The web page's views in Chromium, before real stores and a worker that waits for orders.

With SCREENSHOTS=docs/images in the environment pictures are kept there; JOBS=2000 and `-s` print how quick a list is.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from pecia import ReadBundle, ReadDocument, Verdict
from pecia_schemas.blocks import Block, BlockKind, Cell, Source, Table
from pecia_schemas.results import Page as ReadPage
from tests.acceptance.test_web import faults_of, slip
from tests.shared.browsers import keep, tab
from tests.shared.contract_fleets import gateway, real_fleet
from tests.shared.gateways import Gateway
from tests.shared.real_fleet import RealFleet

__all__ = ["gateway", "real_fleet"]

pytestmark = pytest.mark.gate

JOBS = int(os.environ.get("JOBS", "600"))
LIST = 100
RESULTS = (("Test", "Value", "Unit"), ("Sodium", "139", "mmol/L"), ("Potassium", "4.1", "mmol/L"))
FIELDS = {
    "patient": "Mary Quill",
    "date": None,
    "results": [{"test": "Sodium", "value": "139"}, {"test": "Potassium", "value": "4.1"}],
}


def read_page() -> ReadPage:
    cells = tuple(
        Cell(row=row, column=column, text=text)
        for row, texts in enumerate(RESULTS)
        for column, text in enumerate(texts)
    )
    table = Table(rows=3, columns=3, cells=cells)
    blocks = (
        Block(kind=BlockKind.TEXT, text="Laboratory report", source=Source.MODEL),
        Block(kind=BlockKind.TABLE, text=table.text, table=table, source=Source.MODEL),
    )
    return ReadPage(
        number=1, blocks=blocks, verdict=Verdict.REVIEW, width=900, height=300, engine="tests", fields=FIELDS
    )


@pytest.fixture(autouse=True)
def fleet(real_fleet: RealFleet) -> Iterator[RealFleet]:
    yield real_fleet
    real_fleet.empty()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """The page of a key that may everything."""
    with tab(browser) as page:
        yield page


def sign_in(page: Page, gateway: Gateway) -> None:
    page.goto(f"{gateway.url}/#{gateway.key(name='eva')[1]}")
    expect(page.locator("#who")).to_contain_text("clinic / eva")


def submit(gateway: Gateway, batch: str, *documents: tuple[str, bytes]) -> None:
    form = [("file", document) for document in documents]
    answer = gateway.bearer().post("/v1/jobs", files=form, data={"request": f'{{"batch": "{batch}"}}'})
    assert answer.status_code == 201, answer.text


def test_fields_and_tables_stand_beside_the_page(page: Page, gateway: Gateway, fleet: RealFleet) -> None:
    fleet.answers(ReadDocument, pages=[read_page()])
    submit(gateway, "rounds", ("lab.png", slip("Sodium 139 mmol/L\nPotassium 4.1 mmol/L")))
    fleet.finish()
    sign_in(page, gateway)
    page.get_by_role("button", name="Fields and tables: lab.png").click()
    beside = page.get_by_role("dialog")
    expect(beside.get_by_role("heading", name="lab.png · Page 1")).to_be_visible()
    expect(beside.get_by_role("rowheader", name="patient")).to_be_visible()
    expect(beside.get_by_role("table").nth(1).get_by_role("row")).to_have_text(
        ["testvalue", "Sodium139", "Potassium4.1"]
    )
    expect(beside.get_by_role("table").nth(2).get_by_role("row").last).to_have_text("Potassium4.1mmol/L")
    expect(beside.locator("pre")).to_contain_text("Laboratory report")
    expect(beside.get_by_role("img", name="Page 1")).to_have_js_property("naturalWidth", 900)
    expect(beside.locator("#beside")).to_have_attribute("aria-busy", "false")
    assert faults_of(page) == []
    keep(page, "web-beside")
    beside.get_by_role("button", name="Next page").click()
    expect(page.get_by_role("status")).to_contain_text("There is no other page")
    expect(beside.get_by_role("button", name="Next page")).to_be_disabled()
    page.keyboard.press("Escape")
    expect(beside).to_be_hidden()


def test_files_that_are_sent_together_are_a_batch_which_says_what_is_to_review(
    page: Page, gateway: Gateway, fleet: RealFleet
) -> None:
    fleet.answers(ReadDocument, pages=[read_page()], times=2)
    sign_in(page, gateway)
    files = [FilePayload(name=f"{name}.png", mimeType="image/png", buffer=slip(name)) for name in "ab"]
    page.locator("#files").set_input_files(files)
    expect(page.get_by_role("status")).to_contain_text("2 of 2 sent")
    fleet.finish()
    submit(gateway, "night", ("c.png", slip("c")))
    page.get_by_role("button", name="Batches").click()
    rows = page.locator("#batch-rows tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text(re.compile("night.*1 waiting"))
    expect(rows.nth(1)).to_contain_text(re.compile("web-.*2 done.*2 of 2.*2 to review"))
    assert faults_of(page) == []
    page.get_by_role("button", name="Show jobs: web-").click()
    expect(page.locator("#rows tr")).to_have_text([re.compile(name) for name in ("b.png", "a.png")])
    expect(page.get_by_label("Only of batch")).to_have_value(re.compile("^web-"))


def test_pictures_are_one_bundle_which_is_downloaded_as_fhir(
    page: Page, gateway: Gateway, fleet: RealFleet, tmp_path: Path
) -> None:
    fleet.answers(ReadBundle, pages=["one", "two"], times=3)
    sign_in(page, gateway)
    page.locator("#kind").select_option("bundle.read")
    names = ("scan-10.png", "scan-2.png")
    files = [FilePayload(name=name, mimeType="image/png", buffer=slip(name)) for name in names]
    files.append(FilePayload(name="pile.pdf", mimeType="application/pdf", buffer=b"%PDF-1.7"))
    page.locator("#files").set_input_files(files)
    expect(page.get_by_role("status")).to_contain_text("2 of 2 sent")
    for number in range(3):
        path = tmp_path / "ward 7" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(slip(str(number)))
    page.locator("#folder").set_input_files(tmp_path / "ward 7")
    expect(page.get_by_role("status")).to_contain_text("1 of 1 sent")
    fleet.finish()
    expect(page.locator("#rows tr", has_text="done")).to_have_count(3)
    expect(page.locator("#rows td:first-child")).to_have_text(["ward 7", "scan-2.png", "pile.pdf"])
    with page.expect_download() as coming:
        page.get_by_label("Download as: ward 7").select_option("fhir")
    assert coming.value.suggested_filename == "ward 7.fhir.json"
    assert json.loads(coming.value.path().read_bytes())["resourceType"] == "Bundle"


def test_an_administrator_sees_usage_and_makes_and_revokes_keys(
    page: Page, gateway: Gateway, fleet: RealFleet
) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    submit(gateway, "rounds", ("a.pdf", b"%PDF-1.7"))
    fleet.finish()
    sign_in(page, gateway)
    page.get_by_role("button", name="Administration").click()
    expect(page.locator("#usage-rows tr").last).to_contain_text(re.compile("total"))
    page.get_by_label("Name", exact=True).fill("scanner")
    page.get_by_role("checkbox", name="review").uncheck()
    page.keyboard.press("Enter")
    made = page.get_by_label("The new key")
    expect(made).to_have_value(re.compile("^pecia_"))
    own = gateway.showing(made.input_value()).get("/v1/key").json()["key"]
    assert (own["name"], own["tenant"], own["scopes"]) == ("scanner", "clinic", ["submit", "read"])
    assert faults_of(page) == []
    page.get_by_role("button", name="Revoke: scanner").click()
    expect(page.locator("#key-rows tr", has_text="scanner")).to_contain_text("revoked")
    page.get_by_role("button", name="Sign out").click()
    expect(made).to_have_value("")


MEASURE = """async () => {
  const frame = () => new Promise(requestAnimationFrame), times = { list: Math.round(window.listed) };
  const scroll = [];
  for (let at = 0; at < document.body.scrollHeight; at += document.body.scrollHeight / 60) {
    const began = performance.now();
    window.scrollTo(0, at);
    await frame();
    scroll.push(performance.now() - began);
  }
  times.frame = Math.round(scroll.sort((a, b) => a - b)[Math.floor(scroll.length * 0.95)]);
  times.mean = Math.round(scroll.reduce((sum, one) => sum + one) / scroll.length);
  return times;
}"""


def test_a_long_list_comes_in_pages_and_has_no_gap(page: Page, gateway: Gateway) -> None:
    bearer = gateway.bearer()
    for start in range(0, JOBS, 200):
        names = [f"{number:04}" for number in range(start, start + 200)]
        tasks = [{"url": f"https://a.example/{name}.png", "label": name} for name in names]
        assert bearer.post("/v1/jobs", json={"tasks": tasks}).status_code == 201
    page.add_init_script("""
        addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
            if (document.querySelectorAll("#rows tr").length > 1) window.listed ??= performance.now();
        }).observe(document.getElementById("rows"), { childList: true }));
    """)
    sign_in(page, gateway)
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(LIST)
    for number in range(2, 4):
        page.get_by_role("button", name="Older jobs").click()
        expect(rows).to_have_count(number * LIST)
    submit(gateway, "late", ("late.png", slip("late")))  # pushes a job from the first page
    expect(rows).to_have_count(3 * LIST + 1)
    for number in range(4, JOBS // LIST + 1):
        page.get_by_role("button", name="Older jobs").click()
        expect(rows).to_have_count(number * LIST + 1)
    page.get_by_role("button", name="Older jobs").click()
    expect(page.get_by_role("button", name="Older jobs")).to_be_hidden()
    listed = page.locator("#rows td:first-child").all_text_contents()
    assert listed == ["late.png", *(f"{number:04}" for number in reversed(range(JOBS)))]
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    page.get_by_role("button", name="Cancel: 0100").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name="0100")).to_contain_text("cancelled")
    print(page.evaluate(MEASURE))  # noqa: T201  for docs/gateway.md
