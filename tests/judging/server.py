"""A server on loopback that behaves like the OpenAI API, and misbehaves on command.

with FakeOpenAI() as server:
    server.script("500", "ok")      # the next two requests; afterwards `server.default`
    ... server.url, server.requests
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERDICT = {
    "reason": "the first is right",
    "best": "A",
    "worst": "B",
    "confidence": 0.9,
    "preference_strength": 4,
    "usable": True,
    "training_quality": 4,
    "exclude_tags": [],
}
USAGE = (1000, 100)  # input and output tokens of every answer


@dataclass
class Request:
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: float = field(default_factory=time.monotonic)

    @property
    def user(self) -> str:
        """The user turn, in either API."""
        turns = self.body["messages"] if "messages" in self.body else self.body["input"]
        return turns[-1]["content"]

    @property
    def system(self) -> str:
        return self.body.get("instructions") or self.body["messages"][0]["content"]


class FakeOpenAI:
    """Counts every request in `requests`; `answer` makes the text of a good reply out of one."""

    def __init__(self, answer: Callable[[Request], str] | None = None, default: str = "ok") -> None:
        self.answer = answer or (lambda request: json.dumps(VERDICT))
        self.default = default
        self.requests: list[Request] = []
        self.delay = 0.0
        self._script: list[str] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def script(self, *modes: str) -> None:
        self._script = list(modes)

    def __enter__(self) -> FakeOpenAI:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = Request(self.path, json.loads(self.rfile.read(length)), dict(self.headers))
                with outer._lock:
                    outer.requests.append(request)
                    mode = outer._script.pop(0) if outer._script else outer.default
                outer._closing.wait(outer.delay)
                try:
                    outer._serve(self, request, mode)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    # ------------------------------------------------------------------ behaviour
    def _serve(self, handler: Any, request: Request, mode: str) -> None:
        name, _, value = mode.partition(":")
        if name.isdigit():
            code = {"429": "rate_limit_exceeded", "401": "invalid_api_key", "404": "model_not_found"}
            error = {"message": value or f"scripted {name}", "code": code.get(name), "type": "error"}
            return _send(
                handler, int(name), {"error": error}, {"Retry-After": value} if name == "429" else {}
            )
        if name == "echo_key":  # a careless server that shows what it was sent
            said = request.headers.get("Authorization", "")
            return _send(
                handler, int(value), {"error": {"message": f"Incorrect API key provided: {said}"}}, {}
            )
        if name == "quota":
            return _send(handler, 429, {"error": {"message": "no credit", "code": "insufficient_quota"}}, {})
        if name == "timeout":
            self._closing.wait(float(value))
        elif name == "drop":  # nothing at all, then the line is cut
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return None
        if name == "no_schema" and ("response_format" in request.body or "text" in request.body):
            error = {"message": "response_format json_schema is not supported", "param": "response_format"}
            return _send(handler, 400, {"error": error}, {})
        if name == "no_temperature" and "temperature" in request.body:
            error = {"message": "Unsupported parameter: 'temperature'", "param": "temperature"}
            return _send(handler, 400, {"error": error}, {})
        body = json.dumps(_reply(request, self.answer(request), name, value)).encode()
        if name == "html":
            body = b"<html>502 from some proxy</html>"
        if name == "wrong_api":
            body = b'{"hello": ["world"]}'
        if name == "cut":  # the line breaks in the middle of the body
            return _raw(handler, body[: len(body) // 2], len(body), close=True)
        if name == "slow":  # the body drips in, value seconds altogether
            return _raw(handler, body, len(body), pause=float(value) / 10)
        return _raw(handler, body, len(body))


def _reply(request: Request, text: str, name: str, value: str) -> dict[str, Any]:
    if name == "say":
        text = value
    if name == "truncated":
        text = text[: len(text) // 2]
    chat = "messages" in request.body
    refusal = "I cannot help with that." if name == "refusal" else None
    if chat:
        finish = {"truncated": "length", "filter": "content_filter"}.get(name, "stop")
        message = {"role": "assistant", "content": None if refusal else text, "refusal": refusal}
        reply = {
            "id": "chat-1",
            "object": "chat.completion",
            "model": request.body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)},
        }
    else:
        incomplete = {"truncated": "max_output_tokens", "filter": "content_filter"}.get(name)
        part = (
            {"type": "refusal", "refusal": refusal}
            if refusal
            else {"type": "output_text", "text": text, "annotations": []}
        )
        reply = {
            "id": "resp-1",
            "object": "response",
            "model": request.body["model"],
            "status": "incomplete" if incomplete else "completed",
            "incomplete_details": {"reason": incomplete} if incomplete else None,
            "output": [
                {"type": "reasoning", "id": "r-1", "summary": []},
                {"type": "message", "id": "m-1", "role": "assistant", "content": [part]},
            ],
            "usage": {"input_tokens": USAGE[0], "output_tokens": USAGE[1], "total_tokens": sum(USAGE)},
        }
    if name == "no_usage":
        del reply["usage"]
    return reply


def _send(handler: Any, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
    data = json.dumps(body).encode()
    handler.send_response(status)
    for key, value in {**headers, "Content-Type": "application/json", "Content-Length": len(data)}.items():
        handler.send_header(key, str(value))
    handler.end_headers()
    handler.wfile.write(data)


def _raw(handler: Any, body: bytes, length: int, *, pause: float = 0.0, close: bool = False) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(length))
    handler.end_headers()
    step = max(1, len(body) // 10) if pause else len(body)
    for start in range(0, len(body), step):
        handler.wfile.write(body[start : start + step])
        handler.wfile.flush()
        time.sleep(pause)
    if close:
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True
