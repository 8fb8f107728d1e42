"""Whole fleets that read and caption with vLLM."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from offline import KV_CACHE_BYTES, SIZES
from pecia import Client
from pecia_schemas.settings import WorkerSettings
from pecia_workers.local.fleet import LocalFleet

READY_S = 600
"""Two processes import vLLM one after the other: ten seconds each, and many times that on a busy machine."""


@contextmanager
def fleet_of(home: Path, model: Path, **settings: Any) -> Iterator[tuple[LocalFleet, Client]]:
    """Run a fleet on a checkpoint, small enough to start in seconds, and a client of it."""
    given = {
        **SIZES,
        "engine": "vllm",
        "model": str(model),
        "kv_cache_bytes": KV_CACHE_BYTES,
        "flower_port": 0,
        "decode_processes": 1,
        "max_readings": 1,
        "cache": False,  # a page that comes twice is work twice
        "witness": "none",  # nothing that they write is on the page
        "log_probabilities": False,  # of weights that were drawn by lot, nothing is likely
        **settings,
    }
    with ExitStack() as stack:
        fleet = stack.enter_context(LocalFleet(home, settings=WorkerSettings(**given), announce=False))
        fleet.wait_ready(READY_S)
        urls = fleet.settings
        client = Client(
            urls.database_url.get_secret_value(), urls.redis_url.get_secret_value(), urls.payload_url
        )
        stack.callback(client.close)
        yield fleet, client
