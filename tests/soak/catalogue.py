"""Every fault there is, by the short name that the command line takes."""

from __future__ import annotations

import signal

from tests.soak.ambient_faults import FillDisk, JumpClock
from tests.soak.connection_faults import CutConnections, SilenceConnections, SlowConnections
from tests.soak.faults import Fault
from tests.soak.process_faults import (
    KillEngineWorker,
    KillIngestWorker,
    KillInnerProcess,
    KillService,
    PauseEngineWorker,
)
from tests.soak.rig import Server
from tests.soak.server_faults import EndServer, FlushRedis, LoseRedisData

FAULTS: dict[str, Fault] = {
    "kill-engine": KillEngineWorker(),
    "kill-ingest": KillIngestWorker(),
    "kill-webhooks": KillService("webhook worker killed", "webhooks"),
    "kill-upkeep": KillService("upkeep killed", "upkeep"),
    "kill-inner": KillInnerProcess(),
    "pause-engine": PauseEngineWorker(),
    "kill-redis": EndServer("Redis killed, data kept", Server.REDIS, signal.SIGKILL),
    "lose-redis": LoseRedisData(),
    "restart-redis": EndServer("Redis restarted", Server.REDIS, signal.SIGTERM),
    "flush-redis": FlushRedis(),
    "kill-postgres": EndServer("Postgres killed", Server.POSTGRES, signal.SIGKILL),
    "restart-postgres": EndServer("Postgres restarted", Server.POSTGRES, signal.SIGINT),
    "cut-redis": CutConnections("connections to Redis cut", Server.REDIS),
    "cut-postgres": CutConnections("connections to Postgres cut", Server.POSTGRES),
    "silence-redis": SilenceConnections("connections to Redis half-open", Server.REDIS),
    "silence-postgres": SilenceConnections("connections to Postgres half-open", Server.POSTGRES),
    "slow": SlowConnections(),
    "fill-disk": FillDisk(),
    "jump-clock": JumpClock(),
}
