"""Documents in a web application with FastAPI: submit in a request, verify the callback, fetch the result, store it.

    WEBHOOK_SECRET=… uvicorn --app-dir examples fastapi_app:app --port 8787

docs/embedding.md explains each step; django_app.py is the same with Django.
"""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from uuid import uuid4

from fastapi import FastAPI, HTTPException, Request, UploadFile

from pecia import AsyncClient, PeciaError, ReadDocument, WebhookVerificationError
from pecia.webhooks import verify

CALLBACK_URL = os.environ.get("CALLBACK_URL", "http://127.0.0.1:8787/callbacks")
WEBHOOK_SECRET = os.environ["WEBHOOK_SECRET"]


def query(statement: str, *values: object) -> list[tuple[str, str | None]]:
    """Run one statement in the application's own database, and commit it."""
    with closing(sqlite3.connect("scans.sqlite3")) as database, database:
        return database.execute(statement, values).fetchall()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold one client open as long as the application runs."""
    query("CREATE TABLE IF NOT EXISTS scans (id TEXT PRIMARY KEY, state TEXT NOT NULL, text TEXT)")
    async with AsyncClient() as app.state.pecia:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/scans", status_code=202)
async def submit(file: UploadFile) -> dict[str, str]:
    """Take a document; answer before it is read."""
    scan = str(uuid4())
    query("INSERT INTO scans VALUES (?, 'reading', NULL)", scan)  # first: the callback may be very fast
    task = ReadDocument(await file.read())
    try:
        await app.state.pecia.submit(
            task, idempotency_key=scan, metadata={"scan": scan}, webhook=CALLBACK_URL
        )
    except PeciaError as error:
        query("DELETE FROM scans WHERE id = ?", scan)
        raise HTTPException(503, str(error)) from None
    return {"scan": scan}


@app.post("/callbacks", status_code=204)
async def store(request: Request) -> None:
    """Store what a job came to. The same callback may come again: only the first one changes a scan."""
    try:
        notice = verify(await request.body(), request.headers, WEBHOOK_SECRET)
    except WebhookVerificationError as error:
        raise HTTPException(401, str(error)) from None
    job = await app.state.pecia.job(notice.data.job_id)
    text = (await job.result()).text if job.state.has_result else None
    scan = notice.data.metadata["scan"]
    query("UPDATE scans SET state = ?, text = ? WHERE id = ? AND state = 'reading'", job.state, text, scan)


@app.get("/scans/{scan}")
async def show(scan: str) -> dict[str, str | None]:
    """Show how far a document is, and its text."""
    for state, text in query("SELECT state, text FROM scans WHERE id = ?", scan):
        return {"state": state, "text": text}
    raise HTTPException(404)
