"""A receiver of callbacks on port 8787: checks the signature, prints what is told, answers 204."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pecia import WebhookVerificationError
from pecia.webhooks import verify

SECRET = os.environ.get("WEBHOOK_SECRET", "")


class Receiver(BaseHTTPRequestHandler):
    """Answers each call; whatever is not 2xx is tried again by the fleet."""

    def do_POST(self) -> None:
        """Check who called, then believe it."""
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            notice = verify(body, dict(self.headers), SECRET)
        except WebhookVerificationError as error:
            self.send_error(401, str(error))
            return
        print(notice.type, notice.data.job_id, f"{notice.data.progress.done} pages")
        self.send_response(204)
        self.end_headers()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8787), Receiver).serve_forever()
