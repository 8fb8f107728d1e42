"""Flower in this process, with our bounds. Its own `FLOWER_*` variables and configuration file are not read."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any

import structlog
from flower.app import Flower
from flower.command import extract_settings
from flower.options import options
from flower.urls import settings as page_settings
from tornado.web import RedirectHandler

from pecia_workers.app import app
from pecia_workers.flower.pages import OURS, PartsState

if TYPE_CHECKING:
    from pecia_schemas.settings import WorkerSettings

log = structlog.get_logger(__name__)

_OFFLINE_S = 60
"""A worker that was silent for so long is taken off the page."""


class FleetPage(Flower):
    """Flower, with some of its pages replaced by ours."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(capp=app, options=options, **settings)
        self.events.state = PartsState(
            max_tasks_in_memory=options.max_tasks, max_workers_in_memory=options.max_workers
        )
        if options.url_prefix:  # where Flower knows only what ends in a slash
            bare = f"/{options.url_prefix}"
            self.add_handlers(".*", [(bare, RedirectHandler, {"url": f"{bare}/", "permanent": False})])

    def get_handler_delegate(self, request: Any, target_class: Any, *args: Any, **kwargs: Any) -> Any:
        """Hand a request to our page, if there is one in the place of Flower's."""
        page: Any = OURS.get(target_class, target_class)
        return super().get_handler_delegate(request, page, *args, **kwargs)


def run_flower(settings: WorkerSettings) -> None:
    """Serve Flower until SIGTERM or Ctrl-C. Raises `OSError` if the address or port is not to be had."""
    app.use(settings)
    _bound(settings)
    logging.getLogger("tornado.access").disabled = True
    page = FleetPage(**page_settings)
    port = page.start_http_server()
    log.info("flower", address=settings.flower_address, port=port)
    loop: Any = page.io_loop
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.asyncio_loop.add_signal_handler(number, page.stop)
    page.start()


def _bound(settings: WorkerSettings) -> None:
    """Set Flower's options, which are its process's."""
    options.address = settings.flower_address
    options.port = settings.flower_port
    options.basic_auth = [f"{settings.flower_user}:{settings.flower_password.get_secret_value()}"]
    options.url_prefix = settings.flower_url_prefix.strip("/")
    options.max_tasks = settings.flower_max_tasks
    options.purge_offline_workers = _OFFLINE_S
    options.read_only = True
    options.tasks_columns = "name,uuid,state,kwargs,received,runtime,worker,result"
    extract_settings()
