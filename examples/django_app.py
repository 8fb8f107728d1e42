"""Documents in a web application with Django: submit in a request, verify the callback, fetch the result, store it.

    WEBHOOK_SECRET=… python examples/django_app.py runserver 8787

docs/embedding.md explains each step; fastapi_app.py is the same with FastAPI. A project has its settings, models, views
and URLs in files of their own; here they stand in one.
"""

import os
import sys
from uuid import UUID, uuid4

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, models
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from pecia import Client, PeciaError, ReadDocument, WebhookVerificationError
from pecia.webhooks import verify

CALLBACK_URL = os.environ.get("CALLBACK_URL", "http://127.0.0.1:8787/callbacks")
WEBHOOK_SECRET = os.environ["WEBHOOK_SECRET"]

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "scans.sqlite3"}},
    ROOT_URLCONF=__name__,
)
django.setup()


class Scan(models.Model):  # noqa: DJ008  nothing prints it
    """A document of the application's."""

    id = models.UUIDField(primary_key=True, default=uuid4)
    state = models.CharField(max_length=20, default="reading")
    text = models.TextField(default="")

    class Meta:
        """A project's models belong to an app."""

        app_label = "scans"


client = Client()
"""One for the process: its connections are opened at the first call, and threads share them."""


@csrf_exempt
@require_POST
def submit(request: HttpRequest) -> HttpResponse:
    """Take a document; answer before it is read."""
    scan = Scan.objects.create()  # first: the callback may be very fast
    task = ReadDocument(request.FILES["file"].read())
    try:
        client.submit(
            task, idempotency_key=str(scan.id), metadata={"scan": str(scan.id)}, webhook=CALLBACK_URL
        )
    except PeciaError as error:
        scan.delete()
        return HttpResponse(str(error), status=503)
    return JsonResponse({"scan": str(scan.id)}, status=202)


@csrf_exempt
@require_POST
def store(request: HttpRequest) -> HttpResponse:
    """Store what a job came to. The same callback may come again: only the first one changes a scan."""
    try:
        notice = verify(request.body, request.headers, WEBHOOK_SECRET)
    except WebhookVerificationError as error:
        return HttpResponse(str(error), status=401)
    job = client.job(notice.data.job_id, ReadDocument)
    text = job.result().text if job.state.has_result else ""
    scan = notice.data.metadata["scan"]
    Scan.objects.filter(id=scan, state="reading").update(state=job.state.value, text=text)
    return HttpResponse(status=204)


@require_GET
def show(_request: HttpRequest, scan: UUID) -> HttpResponse:
    """Show how far a document is, and its text."""
    found = get_object_or_404(Scan, id=scan)
    return JsonResponse({"state": found.state, "text": found.text})


urlpatterns = [path("scans", submit), path("scans/<uuid:scan>", show), path("callbacks", store)]

if __name__ == "__main__":
    with connection.schema_editor() as editor:  # a project has migrations
        if Scan._meta.db_table not in connection.introspection.table_names():  # noqa: SLF001  Django's public name
            editor.create_model(Scan)
    execute_from_command_line(sys.argv)
