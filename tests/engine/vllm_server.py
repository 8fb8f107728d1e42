"""vLLM's own server, in processes of its own."""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from offline import KV_CACHE_BYTES, SIZES
from tests.shared.http_doubles import free_port

KEY = "let-me-in"
_START_S = 600
_END_S = 30


@dataclass(frozen=True)
class VllmServer:
    root: str

    @property
    def running(self) -> int:
        """Requests that its scheduler holds."""
        return self._counted("vllm:num_requests_running")

    @property
    def generated(self) -> int:
        """Tokens that it has generated since it started."""
        return self._counted("vllm:generation_tokens_total")

    def _counted(self, metric: str) -> int:
        told = urllib.request.urlopen(f"{self.root}/metrics").read().decode()  # noqa: S310  on loopback
        lines = [line for line in told.splitlines() if line.startswith(metric + "{")]
        return int(float(lines[0].rpartition(" ")[2]))


@contextmanager
def serving(
    fork_server: ForkServerContext, checkpoint: Path, adapter: Path, log: Path
) -> Iterator[VllmServer]:
    """Serve the checkpoint as `tiny`, in float32, and its adapter as `loud`."""
    port = free_port()
    process = fork_server.Process(target=_serve, args=(_options(checkpoint, adapter, port), log))
    process.start()
    try:
        root = f"http://127.0.0.1:{port}"
        _await_health(process, root, log)
        yield VllmServer(root)
    finally:
        _end(process)


def _serve(options: list[str], log: Path) -> None:
    """Run the server in this process, as its command does."""
    from vllm.entrypoints.launchers.api_server.entry import main  # noqa: PLC0415  not where it is only asked

    os.setsid()
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "fork"})
    with log.open("wb") as told:
        os.dup2(told.fileno(), sys.stdout.fileno())
        os.dup2(told.fileno(), sys.stderr.fileno())
    sys.argv[1:] = options
    main()


def _options(checkpoint: Path, adapter: Path, port: int) -> list[str]:
    sizes = [word for name, value in SIZES.items() for word in _option(name, value)]
    return [
        *("--model", str(checkpoint), "--served-model-name", "tiny", "--dtype", "float32", *sizes),
        *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--limit-mm-per-prompt", '{"image": 8}'),
        *("--enable-lora", "--lora-modules", f"loud={adapter}", "--max-loras", "2", "--max-lora-rank", "8"),
        *("--structured-outputs-config", '{"backend": "guidance", "disable_any_whitespace": true}'),
        *("--scheduling-policy", "priority", "--enable-prompt-tokens-details", "--shutdown-timeout", "5"),
        *("--api-key", KEY, "--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "warning"),
    ]


def _option(name: str, value: object) -> list[str]:
    option = "--" + name.replace("_", "-")
    return [option] if value is True else [option, json.dumps(value)]


def _await_health(process: BaseProcess, root: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.is_alive() and time.monotonic() < deadline:
        with suppress(OSError):
            urllib.request.urlopen(f"{root}/health").close()  # noqa: S310  on loopback
            return
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


def _end(process: BaseProcess) -> None:
    """End the server, and what is left of its processes after a while."""
    assert process.pid
    process.terminate()
    process.join(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
