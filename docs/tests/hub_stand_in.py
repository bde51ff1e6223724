"""A server on this machine that stands in for the Hub where a page pushes a folder: see `stand_in`."""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from unittest.mock import patch


def stand_in() -> dict[str, bytes]:
    """Let huggingface_hub's client talk to a server of this process, and return the files that it will have received.

    Their names are "me/repository/path". `unittest.mock.patch.stopall()` ends it.
    """
    received: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                self.answer({"url": f"{address}/{asked['organization']}/{asked['name']}"})
            elif "/preupload/" in self.path:
                files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
                self.answer({"files": files})
            else:  # /api/models/me/repository/commit/main
                repository = self.path.removeprefix("/api/models/").partition("/commit/")[0]
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        received[f"{repository}/{line['value']['path']}"] = base64.b64decode(line["value"]["content"])
                self.answer({"commitUrl": f"{address}/{repository}/commit/0", "commitOid": "0", "pullRequestUrl": None})

        def answer(self, content: dict[str, object]) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("localhost", 0), Handler)
    address = f"http://localhost:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    patch("huggingface_hub.constants.ENDPOINT", address).start()
    return received
