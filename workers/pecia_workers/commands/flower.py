"""`pecia flower`: the page on which people watch a fleet."""

from __future__ import annotations

from pecia_workers.commands.settings import require, settings_or_exit
from pecia_workers.commands.showing import UNAVAILABLE, refused
from pecia_workers.confinement import forbid_core_files


def flower() -> None:
    """Serve Flower, where people watch the fleet, until SIGTERM or Ctrl-C.

    Needs PECIA_REDIS_URL and PECIA_FLOWER_PASSWORD. It listens on PECIA_FLOWER_ADDRESS (loopback) and PECIA_FLOWER_PORT
    (5555). `pecia up` serves it too.

    Example: `PECIA_FLOWER_PASSWORD=… pecia flower`
    """
    settings = settings_or_exit()
    wanted = {
        "PECIA_REDIS_URL": settings.redis_url.get_secret_value(),
        "PECIA_FLOWER_PASSWORD": settings.flower_password.get_secret_value(),
        "PECIA_FLOWER_PORT": settings.flower_port,
    }
    require("Flower needs", wanted, "; `pecia up` serves it by itself.")
    from pecia_workers.commands.starting import admitted_or_exit  # noqa: PLC0415  heavy: help must not wait for it
    from pecia_workers.flower import run_flower  # noqa: PLC0415
    from pecia_workers.logs import configure_logs  # noqa: PLC0415

    admitted_or_exit(settings)
    configure_logs(settings)
    forbid_core_files()
    try:
        run_flower(settings)
    except OSError as error:
        where = f"{settings.flower_address}, port {settings.flower_port}"
        raise refused(f"Flower cannot listen on {where}: {error.strerror}.", UNAVAILABLE) from None
