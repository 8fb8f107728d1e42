"""The metadata services of three clouds, as their documentation has them: what they answer to a machine that asks."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.shared.http_doubles import LoopbackServer, QuietHandler, serving

MACHINE = "engine_7"
"""The name of the machine that asks."""


class MetadataServer(LoopbackServer):
    """Refuses who does not keep a cloud's rules; `going` is whether the machine will be taken away."""

    url = LoopbackServer.root

    def __init__(self) -> None:
        super().__init__(_Answers)
        self.going = False
        self.neighbour_going = False
        self.tokens: list[str] = []
        self.looks = 0


class _Answers(QuietHandler, BaseHTTPRequestHandler):
    server: MetadataServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_PUT(self) -> None:
        self.server.looks += 1
        if self.path != "/latest/api/token" or not self.headers["X-aws-ec2-metadata-token-ttl-seconds"]:
            return self._answer(400, "")
        self.server.tokens.append(f"token-{len(self.server.tokens)}-{self.server.looks}")
        return self._answer(200, self.server.tokens[-1])

    def do_GET(self) -> None:
        self.server.looks += 1
        path = self.path.partition("?")[0]
        if path == "/latest/meta-data/spot/instance-action":
            self._answer(*self._instance_action())
        elif path == "/computeMetadata/v1/instance/preempted":
            told = "TRUE" if self.server.going else "FALSE"
            self._answer(*(200, told) if self.headers["Metadata-Flavor"] == "Google" else (403, ""))
        elif self.headers["Metadata"] != "true" or "api-version=" not in self.path:
            self._answer(400, "")
        elif path == "/metadata/instance/compute/name":
            self._answer(200, MACHINE if "format=text" in self.path else json.dumps(MACHINE))
        elif path == "/metadata/scheduledevents":
            self._answer(200, json.dumps({"DocumentIncarnation": 1, "Events": list(self._events())}))
        else:
            self._answer(404, "")

    def _instance_action(self) -> tuple[int, str]:
        if self.headers["X-aws-ec2-metadata-token"] not in self.server.tokens:
            return 401, ""
        action = {"action": "terminate", "time": "2026-11-21T12:02:00Z"}
        return (200, json.dumps(action)) if self.server.going else (404, "")

    def _events(self) -> Iterator[dict[str, Any]]:
        going = [
            (MACHINE, "Preempt", self.server.going),
            ("engine_8", "Preempt", self.server.neighbour_going),
        ]
        yield self._event(MACHINE, "Freeze")  # a pause of seconds
        yield from (self._event(machine, kind) for machine, kind, is_going in going if is_going)

    @staticmethod
    def _event(machine: str, kind: str) -> dict[str, Any]:
        return {
            "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": [machine],
            "EventStatus": "Scheduled",
            "NotBefore": "Sat, 21 Nov 2026 12:00:30 GMT",
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def metadata_server() -> AbstractContextManager[MetadataServer]:
    return serving(MetadataServer())
