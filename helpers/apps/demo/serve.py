"""Start the page: no telemetry, no network but the one port."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from helpers.apps.demo import looks
from helpers.apps.demo.page import PageSettings, build_page
from helpers.apps.demo.view import Desk
from helpers.errors import CourseError

OLDEST = 6  # major version of Gradio whose launch() takes theme and style sheet


def check_gradio() -> None:
    """Raise CourseError unless a Gradio is installed that can show the page; switch its telemetry off."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    for name in ("NO_PROXY", "no_proxy"):  # Gradio asks its own port whether it is there, never by a proxy
        known = os.environ.get(name, "")
        if "127.0.0.1" not in known:
            os.environ[name] = ",".join(filter(None, [known, "localhost,127.0.0.1"]))
    try:
        found = version("gradio")
    except PackageNotFoundError:
        raise CourseError(
            "the demo needs gradio: in the course's directory, pip install -e '.[demo]'"
        ) from None
    if int(found.split(".")[0]) < OLDEST:
        raise CourseError(f"the demo needs gradio {OLDEST} or newer, not {found}: pip install -U gradio")


def launch(
    desk: Desk,
    settings: PageSettings,
    *,
    host: str | None = "127.0.0.1",
    port: int | None = None,
    share: bool = False,
    block: bool = True,
) -> Any:
    """Serve the page; with `block` until Ctrl-C. Returns the running Blocks, which `close()` ends.

    `host` None: what GRADIO_SERVER_NAME says, as on a Space.
    """
    check_gradio()
    page = build_page(desk, settings)
    page.queue(max_size=64, default_concurrency_limit=4)
    try:
        page.launch(
            server_name=host,
            server_port=port,
            share=share,
            prevent_thread_lock=True,
            quiet=True,
            show_error=False,
            theme=looks.theme(),
            css=looks.CSS,
            footer_links=[],
            ssr_mode=False,
            run_history=False,
            pwa=False,
            enable_monitoring=False,
            inline=False,
        )
    except OSError as problem:
        raise CourseError(f"port {port} of {host} cannot be used ({problem}): give another --port") from None
    print(f"open {page.local_url}   (Ctrl-C ends it)", flush=True)
    if block:
        page.block_thread()
    return page
