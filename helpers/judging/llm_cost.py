"""What judging costs: prices, an estimate before anything is spent, and a budget that cannot be overrun.

Every attempt reserves the most it can cost before it is sent: its bytes as input tokens (no tokenizer makes
more tokens than bytes) and the longest answer allowed. What the server counts replaces the reservation; an
attempt whose answer never came keeps it, for the server may bill it. So the sum stays below the limit
whatever the server does.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from helpers.errors import CourseError

# USD per million tokens, input and output, as known to the authors in November 2025 and not looked up since.
# Where it matters, look them up and give --price_in and --price_out.
PRICES_AS_OF = "2025-11"
PRICES = {
    "gpt-4.1": (2.00, 8.00),
    "gpt-4.1-mini": (0.40, 1.60),
    "gpt-4.1-nano": (0.10, 0.40),
    "gpt-4o": (2.50, 10.00),
    "gpt-4o-mini": (0.15, 0.60),
    "gpt-5": (1.25, 10.00),
    "gpt-5-mini": (0.25, 2.00),
    "gpt-5-nano": (0.05, 0.40),
    "o4-mini": (1.10, 4.40),
}
BYTES_A_TOKEN = 4.0  # of English, for the likely cost
LIKELY_OUTPUT = 120  # tokens of a verdict with its reason


@dataclass(frozen=True)
class Usage:
    """Tokens the server counted."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Price:
    """USD per million tokens; `source` says where they come from."""

    per_million_in: float
    per_million_out: float
    source: str

    def of(self, input_tokens: float, output_tokens: float) -> float:
        """USD."""
        return (input_tokens * self.per_million_in + output_tokens * self.per_million_out) / 1e6


def is_local(base_url: str | None) -> bool:
    """Whether a server runs on this machine or in this network, and so costs nothing a token."""
    host = urlsplit(base_url).hostname if base_url else None
    if not host:
        return False
    if host == "localhost" or host.endswith((".localhost", ".local")):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host  # a name such as "vllm" inside a network of containers
    return address.is_loopback or address.is_private


def price_of(
    model: str, base_url: str | None, price_in: float | None, price_out: float | None
) -> Price | None:
    """The flags, else nothing for a local server, else the table; None where the price is not known.

    Raises:
        CourseError: where only one of the flags is given, or one is negative or NaN.
    """
    if (price_in is None) != (price_out is None):
        raise CourseError("--price_in and --price_out belong together: give both, in USD per million tokens")
    if price_in is not None and price_out is not None:
        if not (price_in >= 0 and price_out >= 0):  # NaN too: no sum with it is ever above --max_cost
            raise CourseError("--price_in and --price_out must be 0 or more, not negative or NaN")
        return Price(price_in, price_out, "--price_in and --price_out")
    if is_local(base_url):
        return Price(0.0, 0.0, "a local server")
    known = PRICES.get(re.sub(r"-\d{4}-\d{2}-\d{2}$", "", model)) if base_url is None else None
    return Price(*known, f"list of {PRICES_AS_OF}") if known else None


@dataclass(frozen=True)
class Estimate:
    """What a batch of requests is likely to cost, and the most that it can without retries."""

    requests: int
    cached: int
    likely: float | None  # USD; None where the price is not known
    most: float | None
    source: str

    def render(self, judge: str) -> str:
        """One line for people."""
        head = f"{judge}: {self.requests} verdicts to ask for, {self.cached} from the cache"
        if not self.requests:
            return head
        if self.likely is None or self.most is None:
            return f"{head}; price unknown, give --price_in and --price_out to see the cost"
        return f"{head}; about ${self.likely:.4f}, at most ${self.most:.4f} ({self.source})"


def estimate(sizes: list[int], cached: int, price: Price | None, max_tokens: int) -> Estimate:
    """Estimate from the bytes of each request."""
    if price is None:
        return Estimate(len(sizes), cached, None, None, "unknown")
    output = min(LIKELY_OUTPUT, max_tokens)
    likely = sum(price.of(size / BYTES_A_TOKEN, output) for size in sizes)
    most = sum(price.of(size, max_tokens) for size in sizes)
    return Estimate(len(sizes), cached, likely, most, price.source)


class OverBudget(Exception):
    """The next attempt might cross --max_cost, and none in flight could make room."""


class Budget:
    """Spent and reserved USD under a limit, shared by threads."""

    def __init__(self, limit: float | None, price: Price | None) -> None:
        if limit is not None and not limit >= 0:
            raise CourseError("--max_cost must be 0 or more, in USD")
        if limit is not None and price is None:
            raise CourseError("--max_cost needs the price of this model: give --price_in and --price_out")
        self.limit, self.price = limit, price
        self.spent = 0.0
        self.usage = Usage()
        self.unknown = 0  # attempts whose answer never came, counted at the most they can cost
        self._reserved: dict[int, float] = {}
        self._next = 0
        self._room = threading.Condition()

    def reserve(self, size: int, max_tokens: int, stopped: Callable[[], bool] = lambda: False) -> int:
        """Set the most aside that a request of `size` bytes can cost; returns a ticket for `settle`.

        Waits for requests in flight where these may leave room. Raises OverBudget where none can.
        """
        most = self.price.of(size, max_tokens) if self.price else 0.0
        with self._room:
            while self.limit is not None and self.spent + sum(self._reserved.values()) + most > self.limit:
                if not self._reserved or stopped():
                    raise OverBudget
                self._room.wait(0.1)
            self._next += 1
            self._reserved[self._next] = most
            return self._next

    def settle(self, ticket: int, usage: Usage | None, *, billed: bool = True) -> None:
        """Book what an attempt did cost; without usage the reservation, with `billed` false nothing."""
        with self._room:
            most = self._reserved.pop(ticket)
            if usage is not None:
                self.usage = Usage(
                    self.usage.input_tokens + usage.input_tokens,
                    self.usage.output_tokens + usage.output_tokens,
                )
                self.spent += self.price.of(usage.input_tokens, usage.output_tokens) if self.price else 0.0
            elif billed:
                self.spent += most
                self.unknown += 1
            self._room.notify_all()

    def render(self) -> str:
        """Spend, for a progress bar."""
        if self.price is None:
            return f"{self.usage.input_tokens + self.usage.output_tokens} tokens"
        return f"${self.spent:.4f}" + (f" of ${self.limit:.2f}" if self.limit is not None else "")
