"""The chat demo driven in a real Chromium: reading along, voting, keys alone, a telephone, hostile text.

Two servers: the command as a user starts it, on the bundled model, and one in this process whose policies
repeat the prompt, so that the answers are as hostile as whoever types.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.apps.demo.gallery import Change, Gallery
from helpers.apps.demo.lineup import Column, Contest, readable
from helpers.apps.demo.page import PageSettings
from helpers.apps.demo.serve import launch
from helpers.apps.demo.streaming import Draft
from helpers.apps.demo.view import Desk, shown
from helpers.apps.demo.votes import VoteBook
from helpers.errors import CourseError
from tests.apps.serving import free_port, served

pytest.importorskip("gradio", reason="the demo needs gradio")
playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 15_000  # milliseconds that a step may take on a busy machine
# Keeps every text that a column ever showed; the value of a text area is no part of the document.
WATCH = """() => {
  window.seen = {A: [], B: []};
  const look = () => {
    for (const letter of ["A", "B"]) {
      const area = document.querySelector(`#answer-${letter} textarea`);
      const list = window.seen[letter];
      if (area && area.value && list[list.length - 1] !== area.value) list.push(area.value);
    }
    requestAnimationFrame(look);
  };
  look();
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        found = next(filter(None, map(shutil.which, names)), None)
        own = driver.chromium.executable_path
        path = own if os.path.exists(own) else found
        if path is None:
            pytest.skip("there is no Chromium: install it, or run `playwright install chromium`")
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser) -> Iterator[Any]:
    """`visit(url, width)`: a page that is ready, with its requests and everything that went wrong on it."""
    pages = []

    def call(url: str, width: int = 1280) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(SECONDS)
        page.requests, page.faults = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("dialog", lambda dialog: page.faults.append(f"dialog {dialog.message}"))
        page.goto(url)
        page.wait_for_selector("#prompt textarea")
        pages.append(page)
        return page

    yield call
    for page in pages:
        assert page.faults == []
        outside = [
            url for url in page.requests if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))
        ]
        assert outside == [], "the page asked somebody else"
        page.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """`python -m helpers demo` in an empty directory, as a user starts it."""
    folder, port = tmp_path_factory.mktemp("demo"), free_port()
    words = [sys.executable, "-m", "helpers", "demo", "--profile", "tiny", "--port", str(port)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with served(words, folder, variables):
        yield SimpleNamespace(url=f"http://127.0.0.1:{port}", folder=folder)


def answers(page: Any) -> list[str]:
    return [page.locator(f"#answer-{letter} textarea").input_value() for letter in "AB"]


def send(page: Any, prompt: str) -> None:
    """Type, press Enter, wait until there is a vote to give."""
    page.fill("#prompt textarea", prompt)
    page.press("#prompt textarea", "Enter")
    page.wait_for_selector("#vote-A")


def test_a_reader_watches_answers_grow_votes_blind_and_finds_the_pair(demo, visit):
    page = visit(demo.url)
    page.evaluate(WATCH)
    page.keyboard.type("Where is Toronto?")  # the prompt has the focus already
    page.keyboard.press("Enter")
    page.wait_for_selector("#vote-A")
    seen, final = page.evaluate("window.seen"), answers(page)
    for letter, text in zip("AB", final, strict=True):
        steps = seen[letter]
        assert len(steps) >= 3 and steps[-1] == text
        assert all(text.startswith(step) for step in steps)
    assert [page.inner_text(f"#title-{letter}").strip() for letter in "AB"] == ["Answer A", "Answer B"]
    page.click("#vote-B")
    page.wait_for_selector("#title-B .demo-pick")
    names = [page.inner_text(f"#title-{letter} .demo-name") for letter in "AB"]
    assert sorted(names) == ["base", "sft"] and "reward" in page.inner_text("#title-A")
    assert not page.is_visible("#vote-A") and not page.is_visible("#vote-tie")
    rows = (demo.folder / "runs/demo_tiny/votes/train_prefs.jsonl").read_text().splitlines()
    pair = json.loads(rows[-1])
    assert (pair["prompt_text"], pair["chosen_text"], pair["rejected_text"]) == (
        "Where is Toronto?",
        *final[::-1],
    )
    assert pair["metadata"]["vote"]["shown"] == names
    page.get_by_role("tab", name="Votes").click()
    page.wait_for_selector("#standings table")
    assert "1 vote;" in page.inner_text("#standings")


def test_the_gallery_says_that_it_was_picked(demo, visit):
    page = visit(demo.url)
    page.get_by_role("tab", name="Gallery").click()
    page.click("#show-gallery")
    page.wait_for_selector("#gallery .demo-card")
    assert page.inner_text("#gallery").startswith("Picked: the 6 largest reward gains of 64")
    page.get_by_label("random").check()
    page.wait_for_function("document.querySelector('#gallery').innerText.startsWith('A random draw')")


def test_keys_are_enough(demo, visit):
    page = visit(demo.url)
    page.keyboard.type("Who was Senin?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#vote-A")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "vote-A":
            break
    style = page.evaluate(
        "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])"
        "(getComputedStyle(document.activeElement))"
    )
    assert page.evaluate("document.activeElement.id") == "vote-A" and style == ["solid", "3px"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#title-A .demo-pick")


def test_on_a_telephone_the_columns_stand_below_each_other(demo, visit):
    page = visit(demo.url, width=390)
    send(page, "Where is Toronto?")
    first, second = (page.locator(f"#column-{letter}").bounding_box() for letter in "AB")
    assert first["x"] == second["x"] and second["y"] >= first["y"] + first["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert first["width"] > 300


def test_two_readers_have_a_comparison_each_and_one_who_leaves_disturbs_nobody(demo, visit):
    gone, first, second = (visit(demo.url) for _ in range(3))
    gone.fill("#prompt textarea", "Where is Oslo?")
    gone.press("#prompt textarea", "Enter")
    gone.wait_for_selector("#column-A")
    gone.goto("about:blank")
    send(first, "Where is Warsaw?")
    send(second, "Who was Lubin?")
    first.click("#vote-tie")
    first.wait_for_selector("#title-A .demo-name")
    assert second.is_visible("#vote-A") and not second.is_visible("#title-A .demo-name")
    second.click("#names")
    second.wait_for_selector("#title-A .demo-name")
    assert "no longer counts" in second.inner_text("#status")


def test_every_control_has_a_name(demo, visit):
    page = visit(demo.url)
    nameless = """() => [...document.querySelectorAll('button, input, textarea, [role=tab]')]
        .filter(e => e.offsetParent && !(e.innerText || e.ariaLabel || e.title || (e.labels || []).length))
        .map(e => e.outerHTML.slice(0, 120))"""
    page.wait_for_function(f"({nameless})().length === 0")  # the examples come a moment later


# ------------------------------------------------------------------ hostile text
EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script> **bold** [a](javascript:pwned)'
EVIL += " {{7*7}} ${window.pwned=1} <|im_end|> \u202eback \x1b[31mred"


class Parrot:
    """A line-up whose policies repeat the prompt."""

    def __init__(self) -> None:
        self.policies = ["base", "sft"]

    def contest(
        self, prompt: str, policies: Any, sampling: Any, *, seed: int, blind: bool
    ) -> Iterator[Contest]:
        if not prompt.strip():
            raise CourseError(f"the prompt is empty {EVIL}")
        text = readable(prompt)
        for stop in (*range(1, 400 if text == "slow" else 2), len(text)):
            time.sleep(0.02 if text == "slow" else 0)
            drafts = [Draft([1], ending + text[:stop], True, True) for ending in ("", "I say: ")]
            columns = tuple(map(Column, self.policies, drafts))
            yield Contest(f"{hash(text)}", text, columns, sampling, seed, blind, done=stop == len(text))


@pytest.fixture(scope="module")
def parrot(tmp_path_factory) -> Iterator[SimpleNamespace]:
    book = VoteBook(tmp_path_factory.mktemp("parrot") / "train_prefs.jsonl")
    wall = Gallery("sft", "base", (Change(EVIL, EVIL, EVIL, 0.0, 1.0),))
    settings = PageSettings(EVIL, [EVIL], gallery=lambda policy, progress: wall)
    page = launch(Desk(Parrot(), book, pace=0), settings, port=free_port(), block=False)  # type: ignore[arg-type]
    yield SimpleNamespace(url=page.local_url, book=book)
    page.close()


def untouched(page: Any) -> bool:
    """Nothing ran, and no element was made of what was typed."""
    made = page.evaluate("document.querySelectorAll('main img[src=x], main script, main strong').length")
    return page.evaluate("window.pwned") is None and made == 0


def test_hostile_text_is_shown_as_text(parrot, visit):
    page = visit(parrot.url)
    send(page, EVIL)
    assert answers(page) == [shown(EVIL), shown("I say: " + EVIL)] and "⟨U+202E⟩" in answers(page)[0]
    page.click("#vote-A")
    page.wait_for_selector("#title-A .demo-pick")
    assert untouched(page)
    assert json.loads(parrot.book.path.read_text().splitlines()[-1])["chosen_text"] == EVIL
    page.get_by_role("tab", name="Gallery").click()
    page.click("#show-gallery")
    page.wait_for_selector("#gallery .demo-card")
    assert "${window.pwned=1}" in page.inner_text("#gallery") and "{{7*7}}" in page.inner_text("#gallery")
    assert untouched(page)


def test_mistakes_are_said_in_plain_text(parrot, visit):
    page = visit(parrot.url)
    page.press("#prompt textarea", "Enter")
    page.wait_for_selector("#status .failed")
    assert page.inner_text("#status").startswith("the prompt is empty <img src=x")
    assert untouched(page)


def test_stop_stops_and_the_next_prompt_is_answered(parrot, visit):
    page = visit(parrot.url)
    page.fill("#prompt textarea", "slow")
    page.press("#prompt textarea", "Enter")
    page.wait_for_selector("#answer-A textarea")
    page.click("#stop")
    page.wait_for_function("document.querySelector('#status').innerText.trim() === 'Stopped.'")
    assert not page.is_visible("#vote-A")
    send(page, "quick")
    assert answers(page) == ["quick", "I say: quick"]


def test_a_very_long_prompt_comes_back_whole(parrot, visit):
    page = visit(parrot.url, width=390)
    long = "<b>" + "x" * 99_997
    send(page, long)
    assert answers(page)[0] == long
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
