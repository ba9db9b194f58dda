"""A thin layer over the `openai` package: one question in, one answer or the reason why there is none out.

OpenAI itself is asked through the Responses API, a server named by --judge_base_url through Chat Completions.
Nothing of a failure is passed on but words: the exceptions of the package hold the request and with it the
key, so none is ever chained to ours.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import openai
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt

from helpers.errors import CourseError
from helpers.judging.llm_cost import Budget, Usage

KEY, SERVER_KEY = "OPENAI_API_KEY", "JUDGE_API_KEY"
LONGEST_REPLY = 2**20  # bytes
LONGEST_WAIT = 120.0  # seconds that a server may ask us to wait
FIRST_WAIT, LONGEST_BACKOFF = 0.5, 20.0  # seconds, where it does not say
FILTERED = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")
Status = Literal["ok", "unparsed", "refused", "missing"]


@dataclass(frozen=True)
class Question:
    """One request: the system turn, the user turn, and the form of the answer (None: plain text)."""

    system: str
    user: str
    schema: dict[str, Any] | None
    max_tokens: int

    @property
    def size(self) -> int:
        """Bytes, with some for the envelope: an upper bound of the input tokens."""
        schema = len(json.dumps(self.schema)) if self.schema else 0
        return len(self.system.encode()) + len(self.user.encode()) + schema + 64


@dataclass(frozen=True)
class Reply:
    """The text of an answer; unless `status` is "ok", `text` says what went wrong."""

    text: str
    status: Status = "ok"


class CutOff(Reply):
    """An answer that reached the longest length: whole where one token was asked for."""


@dataclass(frozen=True)
class Attempt:
    """What one attempt brought: a reply, and whether and when another attempt may do better."""

    reply: Reply
    usage: Usage | None = None
    billed: bool = True
    again: bool = False
    wait: float | None = None  # seconds, as the server wishes
    fatal: str | None = None  # the same for every question: stop


class Stopped(Exception):
    """Another thread met what stops the whole batch."""


class LLMClient:
    """Asks one model, with retries, within a budget. Used by several threads at once."""

    def __init__(
        self,
        model: str,
        base_url: str | None,
        *,
        temperature: float | None,
        timeout: float,
        retries: int,
        budget: Budget,
        with_key: bool = True,
    ) -> None:
        self.model, self.base_url, self.timeout = model, check_url(base_url), timeout
        self.temperature = self.temperature_wanted = temperature
        self.retries, self.budget = retries, budget
        self.use_schema = True
        self.notes: list[str] = []  # what the server would not take
        self.stop = threading.Event()
        self._secret = find_key(base_url) if with_key else None
        try:
            self._client = openai.OpenAI(
                api_key=self._secret or "none", base_url=base_url, timeout=timeout, max_retries=0
            )
        except Exception as problem:  # a proxy that it cannot use, in the words of several libraries
            raise CourseError(
                f"the client cannot be set up: {self._scrub(str(problem))[:200]}; look at the environment"
                " variables HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, or name the judge's host in NO_PROXY"
            ) from None

    @property
    def place(self) -> str:
        """Whom we ask, for messages."""
        return self.base_url or os.environ.get("OPENAI_BASE_URL") or "OpenAI"

    def ask(self, question: Question) -> Reply:
        """The answer; CourseError for what every other question would meet too, OverBudget, Stopped."""
        retrying = Retrying(
            stop=stop_after_attempt(self.retries + 1),
            wait=_wait,
            sleep=self._sleep,
            retry=retry_if_result(lambda attempt: attempt.again),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        attempt = retrying(self._attempt, question)
        if attempt.fatal:
            raise CourseError(attempt.fatal)
        return attempt.reply

    def _sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Stopped

    def _attempt(self, question: Question) -> Attempt:
        if self.stop.is_set():
            raise Stopped
        ticket = self.budget.reserve(question.size, question.max_tokens, self.stop.is_set)
        attempt = Attempt(Reply("interrupted", "missing"))
        try:
            attempt = self._send(question)
        finally:
            self.budget.settle(ticket, attempt.usage, billed=attempt.billed)
        return attempt

    def _send(self, question: Question) -> Attempt:
        """One request. The package's exceptions end here."""
        try:
            status, headers, body = 200, {}, self._post(question)
        except openai.APIStatusError as problem:
            status, headers = problem.status_code, dict(problem.response.headers)
            body = json.dumps(problem.body).encode() if problem.body is not None else b""
        except Exception as problem:  # connections break in the words of several libraries
            if isinstance(problem, TimeoutError) or "Timeout" in type(problem).__name__:
                return Attempt(Reply(f"no answer within {self.timeout:g} s", "missing"), again=True)
            words = self._scrub(f"{type(problem).__name__}: {problem}")[:200]
            refused = "Connection error" in words and _refused(problem)
            return Attempt(Reply(f"connection broke ({words})", "missing"), again=True, billed=not refused)
        if status == 200:
            return self._read(body, whole=question.schema is not None)
        return self._failure(status, headers, body.decode("utf-8", "replace"), question)

    # ------------------------------------------------------------------ sending
    def _post(self, question: Question) -> bytes:
        """The body of a good reply, read to its end within the time limit, however slowly it drips."""
        deadline = time.monotonic() + self.timeout
        if self.base_url is None:
            request = self._client.responses.with_streaming_response.create(**self._responses(question))
        else:
            request = self._client.chat.completions.with_streaming_response.create(**self._chat(question))
        body = bytearray()
        with request as response:
            for chunk in response.iter_bytes():
                body += chunk
                if time.monotonic() > deadline or len(body) > LONGEST_REPLY:
                    raise TimeoutError
        return bytes(body)

    def _responses(self, question: Question) -> dict[str, Any]:
        form = {"type": "json_schema", "name": "verdict", "strict": True, "schema": question.schema}
        return {
            "model": self.model,
            "instructions": question.system,
            "input": [{"role": "user", "content": question.user}],
            "max_output_tokens": max(question.max_tokens, 16),  # the least that the API takes
            "store": False,
            **({"temperature": self.temperature} if self.temperature is not None else {}),
            **({"text": {"format": form}} if question.schema and self.use_schema else {}),
        }

    def _chat(self, question: Question) -> dict[str, Any]:
        form = {"name": "verdict", "strict": True, "schema": question.schema}
        response_format = {"type": "json_schema", "json_schema": form}
        return {
            "model": self.model,
            "messages": [
                {"role": "system", "content": question.system},
                {"role": "user", "content": question.user},
            ],
            "max_tokens": question.max_tokens,
            **({"temperature": self.temperature} if self.temperature is not None else {}),
            **({"response_format": response_format} if question.schema and self.use_schema else {}),
        }

    # ------------------------------------------------------------------ reading
    def _read(self, body: bytes, *, whole: bool) -> Attempt:
        """Read a good reply; with `whole` one that was cut off at the longest length is none."""
        try:
            data = json.loads(body)
            usage = usage_of(data)
            reply = read_responses(data) if self.base_url is None else read_chat(data)
            if isinstance(reply, CutOff) and whole:
                reply = Reply("the answer was cut off: raise --judge_max_tokens", "unparsed")
        except (ValueError, RecursionError):
            return Attempt(Reply("the server's reply is not JSON, or cut off", "unparsed"), again=True)
        except (AttributeError, KeyError, IndexError, TypeError):
            return Attempt(Reply("the server's reply has another form than the API's", "unparsed"))
        return Attempt(Reply(self._scrub(reply.text), reply.status), usage)

    def _failure(self, status: int, headers: Mapping[str, str], body: str, question: Question) -> Attempt:
        """What an HTTP error means: another try, a refusal, a loss, or the end of the batch."""
        words = self._scrub(body)[:300]
        said = f"{self.place} answered {status}"
        missing = Reply(f"{said}: {words}", "missing")
        variable = KEY if self.base_url is None else SERVER_KEY
        fatal = {
            401: f"{said}: the key in the environment variable {variable} is missing or not valid",
            403: f"{said}: the key in {variable} may not use --judge_model {self.model}",
            404: f"{said}: --judge_model {self.model} is not there, or --judge_base_url is wrong: {words}",
        }.get(status)
        if status == 429 and "insufficient_quota" in body:
            fatal = f"{said}: the account behind {variable} has no credit left"
        if fatal:
            return Attempt(missing, billed=False, fatal=fatal)
        if status in (408, 409, 429) or status >= 500:
            return Attempt(missing, billed=False, again=True, wait=retry_after(headers))
        if any(word in body for word in FILTERED):
            return Attempt(Reply(f"{said}: filtered", "refused"), billed=False)
        if status in (400, 422) and self._simplify(body, question):
            return Attempt(missing, billed=False, again=True, wait=0.0)
        return Attempt(missing, billed=False)

    def _simplify(self, body: str, question: Question) -> bool:
        """Leave out what the server rejects, once and with a note; whether anything was left to leave out."""
        text = body.lower()
        if "temperature" in text and self.temperature is not None:
            self.temperature = None
            self.notes.append(f"{self.place} takes no temperature for {self.model}: its own is used")
            return True
        words = ("response_format", "json_schema", "schema", "text.format", "grammar", "structured")
        if question.schema and any(word in text for word in words):
            if self.use_schema:
                self.use_schema = False
                self.notes.append(f"{self.place} takes no JSON schema: answers are checked here alone")
            return True
        return False

    def _scrub(self, text: str) -> str:
        return text.replace(self._secret, "[key]") if self._secret else text


# ---------------------------------------------------------------------- keys and addresses
def find_key(base_url: str | None) -> str | None:
    """The key for a server, from the environment only; CourseError where OpenAI is meant and there is none.

    A server named by --judge_base_url never gets the key to OpenAI: it has a variable of its own.
    """
    key = (os.environ.get(KEY if base_url is None else SERVER_KEY) or "").strip()
    if base_url is None and not key:
        raise CourseError(
            f"--judge openai needs a key in the environment variable {KEY}, or a server of your own:"
            " --judge_base_url http://localhost:8000/v1 --judge_model NAME (docs/judging.md);"
            " without either use --judge gold on the bundled prompts, or --judge reward_model"
        )
    if not key.isascii() or not key.isprintable():
        raise CourseError(
            f"the key in the environment variable {KEY if base_url is None else SERVER_KEY}"
            " holds characters that no key has"
        )
    return key or None


def check_url(base_url: str | None) -> str | None:
    """Refuse what is no address, or carries a secret that would end up in names and caches."""
    if base_url is None:
        return None
    try:
        parts = urlsplit(base_url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise CourseError("--judge_base_url must look like http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise CourseError(f"--judge_base_url must hold no key or password: put it into {SERVER_KEY}")
    return base_url.rstrip("/")


# ---------------------------------------------------------------------- replies
def read_chat(data: Any) -> Reply:
    """A reply of Chat Completions."""
    choice = data["choices"][0]
    message, reason = choice["message"], choice.get("finish_reason")
    if message.get("refusal"):
        return Reply(str(message["refusal"])[:300], "refused")
    return _finished(message.get("content"), reason == "content_filter", reason == "length")


def read_responses(data: Any) -> Reply:
    """A reply of the Responses API, which may think before it writes."""
    if data.get("status") == "failed":
        return Reply(f"the response failed: {json.dumps(data.get('error'))[:200]}", "missing")
    parts = [part for item in data["output"] if item["type"] == "message" for part in item["content"]]
    for part in parts:
        if part["type"] == "refusal":
            return Reply(str(part["refusal"])[:300], "refused")
    text = "".join(part["text"] for part in parts if part["type"] == "output_text")
    reason = (data.get("incomplete_details") or {}).get("reason")
    return _finished(text, reason == "content_filter", data.get("status") == "incomplete")


def _finished(text: Any, filtered: bool, cut: bool) -> Reply:
    if filtered:
        return Reply("stopped by a content filter", "refused")
    if cut and isinstance(text, str):
        return CutOff(text)
    if not isinstance(text, str) or not text.strip():
        return Reply("the answer is empty", "missing")
    return Reply(text)


def usage_of(data: Any) -> Usage | None:
    """Tokens as either API counts them; None where the server does not say."""
    usage = data.get("usage") or {}
    counts: list[Any] = [usage.get(f"{kind}_tokens") for kind in ("input", "output")]
    if counts[0] is None:
        counts = [usage.get(f"{kind}_tokens") for kind in ("prompt", "completion")]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        return None
    return Usage(*counts)


# ---------------------------------------------------------------------- waiting
def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, capped; None without one."""
    lowered = {name.lower(): value for name, value in headers.items()}
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(lowered[name]) / scale
        except (KeyError, ValueError):
            continue
        if seconds >= 0:
            return min(seconds, LONGEST_WAIT)
    return None


def _wait(state: RetryCallState) -> float:
    """What the server asks for, else twice as long each time; up to a quarter more, lest all come at once."""
    wished = state.outcome.result().wait if state.outcome else None
    seconds = (
        wished if wished is not None else min(FIRST_WAIT * 2 ** (state.attempt_number - 1), LONGEST_BACKOFF)
    )
    return seconds * (1 + 0.25 * random.random())


def _refused(problem: BaseException) -> bool:
    """Whether nobody listened, so that nothing can have been billed."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError) or type(cause).__name__ == "ConnectError":
            return True
        cause = cause.__cause__ or cause.__context__
    return False
