"""Serves the metrics of a running job at `/metrics` on a port of its driver.

Setting `metrics_port`; the address is loopback unless `metrics_host` names another. Nothing is authenticated:
every process that can connect can read the metrics.

Source: docs/decisions/0033-metrics.md.
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from holdfast.errors import ConfigError
from holdfast.runtime.job.live import Status
from holdfast.runtime.job.openmetrics import CONTENT_TYPE, check_installed, exposition

CLIENT_TIMEOUT_S = 5.0


class MetricsPort:
    """The port; `take` sets the metrics that it serves.

    Raises:
        ConfigError: the port cannot be opened, or the package prometheus-client is missing.
    """

    def __init__(self, host: str, port: int) -> None:
        check_installed()
        self._status: Status | None = None
        try:
            self._server = _Server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"metrics cannot be served on {host}:{port}: {getattr(error, 'strerror', None) or error}",
                not_done="the job was not started",
                next_step="give another metrics_port or metrics_host, or 0 as the port to serve none",
            ) from error
        self._server.served = self
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port."""
        host, port = self._server.server_address[:2]
        return str(host), port

    def take(self, status: Status) -> None:
        """Serve this status from now on."""
        self._status = status

    def text(self) -> bytes | None:
        """Return the metrics; None before the first status."""
        return None if self._status is None else exposition(self._status.as_json())

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    served: MetricsPort


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, "metrics are at /metrics")
        elif (text := self.server.served.text()) is None:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "the job is starting")
        else:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""
