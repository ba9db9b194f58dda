"""The report in a real Chromium: fits a telephone, asks for nothing, complains of nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from helpers.course.handout import write_handout
from tests.course.test_handout import RECORDINGS, make_evaluation

playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs playwright")


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_and_is_alone(tmp_path: Path, width: int) -> None:
    paths = [make_evaluation(tmp_path / "evaluation", text="word" * 40), RECORDINGS / "hacked_grpo_0"]
    page_path = write_handout(paths, tmp_path / "out")[0]
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    with playwright.sync_playwright() as driver:
        own = driver.chromium.executable_path
        path = own if os.path.exists(own) else next(filter(None, map(shutil.which, names)), None)
        if path is None:
            pytest.skip("there is no Chromium: install it, or run `playwright install chromium`")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        asked, said = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(page_path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        images = page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 0)")
        assert images and all(images)
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert said == []
        browser.close()
