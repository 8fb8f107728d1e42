"""Jobs over HTTP: documents in, states, pages and results out, errors as problems."""

import io
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pikepdf
import pytest

from pecia import Bundle, Client, Document, FailureCode, GatewayUnavailableError, ReadBundle, ReadDocument
from pecia.bundles import Layout, save_documents
from pecia.gateway.announcements import SharedAnnouncements
from pecia_schemas import redis_connections
from pecia_schemas.bundles import BundleDoubt, BundleDoubtReason, Cut, DocumentKind, DocumentPart, Split
from pecia_schemas.media import MediaType, Pile
from tests.shared import bundle_files, http_doubles
from tests.shared.gateways import Gateway, serving
from tests.shared.limits import WAIT_S
from tests.shared.real_fleet import RealFleet
from tests.shared.samples import page

PDF = b"%PDF-1.7"
STREAM = {"Accept": "text/event-stream"}


def submitted(bearer: Any, *files: bytes, **request: Any) -> list[dict[str, Any]]:
    form = [("file", (f"{number}.pdf", content)) for number, content in enumerate(files or (PDF,))]
    answer = bearer.post("/v1/jobs", files=form, data={"request": json.dumps(request)})
    assert answer.status_code == 201, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def events_of(text: str) -> list[tuple[str, str | None, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if lines:
            found.append((lines["event"], lines.get("id"), json.loads(lines["data"])))
    return found


def test_documents_of_a_form_become_jobs(gateway: Gateway) -> None:
    bearer = gateway.bearer()
    first, second = submitted(
        bearer,
        PDF + b" one",
        PDF + b" two",
        priority="urgent",
        metadata={"ward": "7"},
        task={"language": "de"},
    )
    assert (first["number"], second["number"], first["created"]) == (0, 1, True)
    seen = bearer.get(f"/v1/jobs/{second['id']}").json()
    assert (seen["state"], seen["lane"], seen["metadata"]) == ("queued", "urgent", {"ward": "7"})


def test_a_browser_may_send_the_request_as_a_file_of_the_form(gateway: Gateway) -> None:
    request = ("blob", b'{"priority": "urgent"}', "application/json")
    form: Any = [("file", ("scan.pdf", PDF)), ("request", request)]
    answer = gateway.bearer().post("/v1/jobs", files=form)
    assert (answer.status_code, answer.json()["jobs"][0]["lane"]) == (201, "urgent"), answer.text
    form[1] = ("request", ("blob", b" " * (16 * 1024**2 + 1), "application/json"))
    refused = gateway.bearer().post("/v1/jobs", files=form)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")


def test_a_result_comes_in_the_form_asked_for_or_it_is_said_why_not(
    fleet: RealFleet, gateway: Gateway
) -> None:
    fleet.answers(ReadDocument, pages=["one", "two"])
    fleet.fails(ReadDocument, FailureCode.ENCRYPTED, times=1)
    bearer = gateway.bearer()
    failed, job = submitted(bearer, PDF, PDF)
    path = f"/v1/jobs/{job['id']}/result"
    early = bearer.get(path)
    assert (early.status_code, early.json()["code"]) == (409, "job_not_over")
    assert early.headers["content-type"] == "application/problem+json"
    fleet.finish()
    problem = bearer.get(f"/v1/jobs/{failed['id']}/result").json()
    assert (problem["code"], problem["failure"]) == ("job_failed", "encrypted")
    assert Document.model_validate_json(bearer.get(path).content).text == "one\ftwo"
    text = bearer.get(path, params={"format": "text"})
    assert (text.text.split(), text.headers["content-type"]) == (["one", "two"], "text/plain; charset=utf-8")
    none = bearer.get(path, params={"format": "srt"})
    assert (none.status_code, none.json()["code"]) == (422, "invalid_format")
    bearer.request("DELETE", f"/v1/jobs/{job['id']}")
    erased = bearer.get(path)
    assert (erased.status_code, erased.json()["code"]) == (410, "job_erased")


def test_pages_are_events_and_a_stream_goes_on_where_it_broke(fleet: RealFleet, gateway: Gateway) -> None:
    fleet.answers(ReadDocument, pages=["one", FailureCode.TOO_LARGE, "three"])
    bearer = gateway.bearer()
    (job,) = submitted(bearer)
    path = f"/v1/jobs/{job['id']}/pages"
    with bearer.stream("GET", path, headers=STREAM) as answer:
        coming = answer.iter_lines()
        fleet.finish()
        told = events_of("\n".join(coming))
    assert [name for name, _, _ in told] == ["page", "failed", "page", "end"]
    assert told[1][2] == {
        "number": 2,
        "stage": "read",
        "failure": {**told[1][2]["failure"], "code": "too_large"},
    }
    assert told[0][2]["blocks"][0]["text"] == "one"
    assert bearer.get(path).json()["parts"][0]["content"]["blocks"][0]["text"] == "one"
    assert told[-1][2]["state"] == "partial"
    again = events_of(bearer.get(path, headers=STREAM | {"Last-Event-ID": str(told[1][1])}).text)
    assert [(name, data.get("number")) for name, _, data in again[:-1]] == [("page", 3)]


@pytest.mark.parametrize("drops", [False, True])
def test_streams_end_with_their_job_whatever_the_subscription_goes_through(
    fleet: RealFleet, monkeypatch: pytest.MonkeyPatch, *, drops: bool
) -> None:
    # As after a pause: redis-py reads the reply to a ping before the next command.
    monkeypatch.setattr(redis_connections, "HEALTH_CHECK_S", 0.001)
    fleet.answers(ReadDocument, pages=["one", "two"])
    with serving(fleet.settings) as gateway, ThreadPoolExecutor(4) as beside:
        bearer = gateway.bearer()
        for _ in range(3):
            jobs = [job["id"] for job in submitted(bearer, *(PDF + bytes([n]) for n in range(4)))]
            streams = [beside.submit(bearer.get, f"/v1/jobs/{job}/pages", headers=STREAM) for job in jobs]
            if drops:
                fleet._redis.client_kill_filter(_type="pubsub")
            fleet.finish()
            told = [[name for name, _, _ in events_of(stream.result(WAIT_S).text)] for stream in streams]
            assert told == [["page", "page", "end"]] * 4


def test_a_stream_that_a_fault_ends_says_so(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(SharedAnnouncements, "wait", fail)
    bearer = gateway.bearer()
    (job,) = submitted(bearer)
    with bearer.stream("GET", f"/v1/jobs/{job['id']}/pages", headers=STREAM) as answer:
        ((name, _, problem),) = events_of("\n".join(itertools.islice(answer.iter_lines(), 2)))
    assert (name, problem["code"]) == ("error", "internal")


def test_a_part_leads_to_its_job_for_the_tenant_alone(fleet: RealFleet, gateway: Gateway) -> None:
    bearer, other = gateway.bearer(), gateway.bearer("other")
    job, _ = submitted(bearer, PDF, PDF + b" two")
    fleet.finish()
    events = bearer.get(f"/v1/jobs/{job['id']}/events").json()
    part = next(event["part_id"] for event in events if event["part_id"])
    found = [one.get("/v1/jobs", params={"part": part}).json()["jobs"] for one in (bearer, other)]
    assert [[seen["id"] for seen in jobs] for jobs in found] == [[job["id"]], []]


@pytest.mark.parametrize(
    "other",
    [
        {"state": "failed"},
        {"metadata": "ward=7"},
        {"since": "PT0S"},
        {"batch": "night"},
        {"prefix": "0190"},
        {"before": "0190b3c8-7e1a-7c55-b1d2-3c8f0a6f9e11"},
    ],
)
def test_jobs_that_are_named_are_not_filtered_too(gateway: Gateway, other: dict[str, str]) -> None:
    bearer = gateway.bearer()
    (job,) = submitted(bearer)
    named = {"id": job["id"]}
    assert [one["id"] for one in bearer.get("/v1/jobs", params=named).json()["jobs"]] == [job["id"]]
    refused = bearer.get("/v1/jobs", params=named | other)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_option")


def test_events_come_again_from_where_they_may_be_missing(fleet: RealFleet, gateway: Gateway) -> None:
    bearer = gateway.bearer()
    (job,) = submitted(bearer)
    fleet.finish()
    told = events_of(bearer.get(f"/v1/jobs/{job['id']}/events", headers=STREAM).text)
    states = [data["state"] for name, _, data in told if name == "event" and data["part_id"] is None]
    assert states == ["queued", "running", "succeeded"]
    last = max(data["sequence"] for name, _, data in told if name == "event")
    rest = bearer.get(f"/v1/jobs/{job['id']}/events", headers=STREAM | {"Last-Event-ID": str(last)})
    assert [name for name, _, _ in events_of(rest.text)] == ["end"]


@pytest.mark.parametrize("path", ["/v1/counts?batch=%00", "/v1/batches/a%00b"])
def test_what_postgres_refuses_says_nothing_of_the_database(path: str, gateway: Gateway) -> None:
    answer = gateway.bearer().get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "refused")
    assert "cannot be stored" in answer.json()["detail"]
    assert "Postgres" not in answer.text


def test_a_document_is_never_named_by_its_content(gateway: Gateway) -> None:
    task = {"source": {"sha256": "0" * 64, "size": 1, "media_type": MediaType.PDF}}
    answer = gateway.bearer().post("/v1/jobs", json={"tasks": [task]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 422),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400),
        ({"json": {}}, 422),
        ({"json": {"tasks": [{"url": "https://a.example/", "language": "xxx"}]}}, 422),
    ],
)
def test_a_request_without_form_is_a_problem(gateway: Gateway, given: dict[str, Any], status: int) -> None:
    answer = gateway.bearer().post("/v1/jobs", **given)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_another_program_at_the_gateways_url_is_said_to_be_none() -> None:
    class WebPage(http_doubles.QuietHandler):
        def do_GET(self) -> None:  # noqa: N802  the base class calls it
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html></html>")

    with (
        http_doubles.serving(http_doubles.LoopbackServer(WebPage)) as server,
        Client(server.root, api_key="key") as client,
        pytest.raises(GatewayUnavailableError, match="check its URL"),
    ):
        list(client.jobs())


def test_a_body_without_documents_is_small(gateway: Gateway) -> None:
    body = b"[" + b"[]," * 500_000 + b"[]]"
    for content in (body, iter([body])):  # with its length in the header, and without
        answer = gateway.bearer().post(
            "/v1/batches", content=content, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_number_of_seconds_is_a_distance_from_now(fleet: RealFleet, gateway: Gateway) -> None:
    bearer = gateway.bearer()
    (job,) = submitted(bearer, expires=3600)
    fleet.advance(timedelta(minutes=59))
    assert bearer.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"
    assert [
        len(bearer.get("/v1/jobs", params={"since": since}).json()["jobs"]) for since in ("86400", "60")
    ] == [1, 0]


def test_a_document_of_a_bundle_is_drawn_alone_but_none_in_conflict(
    fleet: RealFleet, gateway: Gateway, tmp_path: Path
) -> None:
    cut, doubt = (
        Cut(page=1, probability=1),
        BundleDoubt(reason=BundleDoubtReason.IDENTITY_CONFLICT, pages=(3,)),
    )
    parts = [
        DocumentPart(
            number=number, pages=pages, cut=cut, kind=DocumentKind.OTHER, kind_probability=1, doubts=doubts
        )
        for number, pages, doubts in ((1, (1, 2), ()), (2, (3,), (doubt,)), (3, (4,), ()))
    ]
    pages = [page(number, text=f"page {number}") for number in range(1, 5)]
    fleet.answers(ReadBundle, Bundle(pages=tuple(pages), split=Split(documents=tuple(parts))))
    _, key = gateway.key()
    (job,) = submitted(gateway.showing(key), bundle_files.three_documents(), task={"kind": "bundle.read"})
    fleet.finish(UUID(job["id"]))
    with Client(gateway.url, api_key=key) as client:
        bundle = client.job(job["id"]).result(timeout=WAIT_S)
        files, held = save_documents(client.job(job["id"]), bundle, tmp_path)
        assert (
            client.export(tmp_path / "all", layout=Layout(with_conflicts=True), kind="bundle.read").written
            == 1
        )
    assert [document.part.number for document in held] == [2]
    for counts, where in (([2, 1], files), ([2, 1, 1], sorted((tmp_path / "all").rglob("*.pdf")))):
        assert [len(pikepdf.open(file).pages) for file in where] == counts
    of = partial(gateway.showing(key).get, f"/v1/jobs/{job['id']}/result")
    assert [of(params={"document": number}).status_code for number in (1, 2, 4)] == [200, 409, 404]
    assert of(params={"document": 2, "with_conflicts": True, "format": "text"}).text.strip() == "page 3"
    sent = of(params={"format": "fhir"})
    assert sent.headers["content-type"] == "application/fhir+json"
    assert [entry["resource"]["resourceType"] for entry in sent.json()["entry"]].count(
        "DocumentReference"
    ) == 2


def test_files_of_a_form_are_one_bundle_together(fleet: RealFleet, gateway: Gateway) -> None:
    seen: list[bytes] = []

    def answer(task: ReadBundle) -> str:
        seen.append(cast("bytes", task.source))
        return "text"

    fleet.answers(ReadBundle, answer)
    bearer, task = gateway.bearer(), {"kind": "bundle.read", "files": 2}
    jobs = submitted(bearer, PDF + b"1", PDF + b"2", PDF + b"3", PDF + b"4", task=task)
    assert [job["label"] for job in jobs] == ["0.pdf", "2.pdf"]
    for job in jobs:
        fleet.finish(UUID(job["id"]))
    assert [[one[start:end] for start, end in Pile.members(io.BytesIO(one))] for one in seen] == [
        [PDF + b"1", PDF + b"2"],
        [PDF + b"3", PDF + b"4"],
    ]
    files = [("file", ("0.pdf", PDF))] * 3
    assert (
        bearer.post("/v1/jobs", files=files, data={"request": json.dumps({"task": task})}).status_code == 422
    )


def test_a_bundle_is_read_and_split_over_http(fleet: RealFleet, gateway: Gateway) -> None:
    fleet.answers(ReadBundle, pages=["one", FailureCode.DAMAGED, "three"])
    _, key = gateway.key()
    task = {"kind": "bundle.read", "subject": {"name": "Mary Quill", "birth_date": "1961-03-14"}}
    (job,) = submitted(gateway.showing(key), PDF, task=task)
    fleet.finish(UUID(job["id"]))
    with Client(gateway.url, api_key=key) as client:
        bundle = client.job(job["id"]).result(timeout=WAIT_S)
    assert isinstance(bundle, Bundle)
    (document,) = bundle.documents
    assert (document.part.pages, [page.number for page in document.failed]) == ((1, 2, 3), [2])
    seen = gateway.showing(key).get(f"/v1/jobs/{job['id']}").text
    assert "Quill" not in seen
    names = [
        name for name, _, _ in events_of(gateway.showing(key).get(f"/v1/jobs/{job['id']}/pages/stream").text)
    ]
    assert names == ["page", "failed", "page", "split", "end"]
