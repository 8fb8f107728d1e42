"""`pecia mcp`: serves the fleet as tools for a language model, by the Model Context Protocol."""

import asyncio
from pathlib import Path
from typing import Annotated

from typer import Option

from pecia.aio.client import AsyncClient
from pecia.gateway.tools import LocalBackend, make_tools


def mcp(
    *,
    folder: Annotated[
        Path,
        Option(
            metavar="DIR", exists=True, file_okay=False, help="Only files below this folder may be submitted."
        ),
    ] = Path(),
) -> None:
    """Serve tools to a language model on standard input and output: submit, status, pages, fields, search.

    With PECIA_GATEWAY_URL and PECIA_API_KEY the tools have that key's rights. A gateway serves them at /mcp itself.

    Example: `pecia mcp --folder scans/`
    """

    async def serve() -> None:
        async with AsyncClient() as client:
            await make_tools(LocalBackend(client, folder)).run_stdio_async()

    asyncio.run(serve())
