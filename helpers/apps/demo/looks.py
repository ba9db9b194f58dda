"""How the page looks: a theme of fonts that need no network, one style sheet, and small pieces of HTML.

Whatever is not written in this file is escaped: `Markup.format` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from helpers.apps.demo.gallery import Change
from helpers.apps.demo.view import Panel, shown, signed
from helpers.apps.demo.votes import Standing

CSS = """
.gradio-container { width: 100% !important; max-width: 1240px !important; margin: 0 auto !important; }
.html-container { padding: 0 !important; }
.demo-answer .block { border-width: 0 !important; background: transparent !important; }
.gradio-container .fillable { max-width: 1240px !important; }
.prose .demo-table, .prose .demo-table tr { border: 0; }
.prose .demo-head h1 { font-size: 1.55rem; font-weight: 650; margin: .4rem 0 .1rem; letter-spacing: -.01em; }
.demo-head p { margin: 0; color: var(--body-text-color-subdued); max-width: 68ch; line-height: 1.5; }
.demo-answer { border: 1px solid var(--border-color-primary); border-radius: 12px; padding: 12px;
  background: var(--background-fill-primary); }
.demo-answer label.show_textbox_border textarea { font-size: 1rem !important; line-height: 1.55 !important;
  border: 0 !important; box-shadow: none !important; background: transparent !important;
  padding: 2px 0 !important; color: var(--body-text-color) !important; }
.demo-answer button { margin-top: auto; }
.demo-title { display: flex; flex-wrap: wrap; align-items: baseline; gap: 8px; min-height: 1.7em; }
.demo-letter { font-weight: 650; }
.demo-name { font-weight: 600; padding: 1px 10px; border-radius: 999px; color: #075985;
  background: #e0f2fe; }
.demo-note { min-height: 1.5em; color: var(--body-text-color-subdued); font-size: .9rem;
  font-variant-numeric: tabular-nums; }
.demo-pick { color: #166534; font-weight: 600; font-size: .9rem; }
.dark .demo-pick { color: #86efac; }
.demo-status { min-height: 1.6em; line-height: 1.5; overflow-wrap: anywhere; }
.demo-status.failed { color: #b42318; font-weight: 600; }
.dark .demo-status.failed { color: #fda29b; }
.demo-caption { font-weight: 600; line-height: 1.5; max-width: 80ch; margin: .2rem 0 .8rem; }
.demo-card { border: 1px solid var(--border-color-primary); border-radius: 12px; padding: 12px 14px;
  margin-bottom: 12px; overflow-wrap: anywhere; }
.demo-card h3 { margin: 0 0 8px; font-size: 1rem; font-weight: 600; white-space: pre-wrap; }
.demo-two { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(260px, 100%), 1fr)); }
.demo-two div { white-space: pre-wrap; line-height: 1.5; }
.demo-two small { display: block; color: var(--body-text-color-subdued); font-variant-numeric: tabular-nums; }
.demo-scroll { overflow-x: auto; }
.demo-table { border-collapse: collapse; width: 100%; min-width: 520px; font-variant-numeric: tabular-nums; }
.prose .demo-table th, .prose .demo-table td { text-align: left; padding: 8px 10px; border: 0;
  border-bottom: 1px solid var(--border-color-primary); }
.prose .demo-table td { vertical-align: middle; }
.demo-bar { position: relative; height: 14px; min-width: 140px; border-radius: 7px;
  background: linear-gradient(90deg, transparent calc(50% - 1px), #94a3b8 0, #94a3b8 calc(50% + 1px),
  transparent 0), var(--background-fill-secondary); }
.demo-bar i { position: absolute; top: 4px; height: 6px; border-radius: 3px; background: #7dd3fc; }
.demo-bar b { position: absolute; top: 1px; width: 12px; height: 12px; margin-left: -6px; border-radius: 50%;
  background: #0369a1; }
button:focus-visible, input:focus-visible, textarea:focus-visible, a:focus-visible,
[role="tab"]:focus-visible { outline: 3px solid #0284c7 !important; outline-offset: 2px !important; }
@media (max-width: 640px) { .gradio-container { padding: 8px !important; } }
"""


def theme() -> Any:
    """A light theme in the fonts that the machine has."""
    import gradio as gr

    return gr.themes.Base(
        primary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=("system-ui", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif"),
        font_mono=("ui-monospace", "Menlo", "Consolas", "monospace"),
    ).set(
        body_background_fill="#f8fafc",
        body_text_color_subdued="#475569",
        block_info_text_color="#475569",
        block_label_text_color="#334155",
        button_large_text_weight="500",
        button_primary_background_fill="#0369a1",
        button_primary_background_fill_hover="#075985",
        button_primary_text_color="white",
    )


def head(model_name: str) -> Markup:
    """The title of the page."""
    return Markup(
        '<div class="demo-head"><h1>Which answer is better?</h1><p>One prompt, several versions of {}. The'
        " columns are shuffled and unnamed until you vote. Votes are kept as preference pairs.</p></div>"
    ).format(model_name)


def title(panel: Panel) -> Markup:
    """The line above an answer."""
    parts = [Markup('<span class="demo-letter">Answer {}</span>').format(panel.letter)]
    if panel.name:
        parts.append(Markup('<span class="demo-name">{}</span>').format(panel.name))
    if panel.picked:
        parts.append(Markup('<span class="demo-pick">your pick</span>'))
    note = Markup('<div class="demo-note">{}</div>').format(panel.note)
    return Markup('<div class="demo-title">{}</div>{}').format(Markup("").join(parts), note)


def status(text: str, failed: bool = False) -> Markup:
    """The line that says what happens; read aloud by screen readers."""
    kind, role = ("demo-status failed", "alert") if failed else ("demo-status", "status")
    return Markup('<div class="{}" role="{}" aria-live="polite">{}</div>').format(kind, role, shown(text))


def caption(text: str) -> Markup:
    """A sentence above pictures or a table."""
    return Markup('<div class="demo-caption">{}</div>').format(text)


def cards(changes: Sequence[Change], before: str, after: str) -> Markup:
    """Examples: the prompt, and two answers with their rewards."""
    side = Markup("<div><small>{}, reward {}{}</small>{}</div>")
    card = Markup('<div class="demo-card"><h3>{}</h3><div class="demo-two">{}{}</div></div>')
    parts = []
    for change in changes:
        old = side.format(before, signed(change.reward_before), "", shown(change.before))
        new = side.format(
            after, signed(change.reward_after), f", gain {signed(change.gain)}", shown(change.after)
        )
        parts.append(card.format(shown(change.prompt), old, new))
    return Markup("").join(parts)


def standings(lines: Sequence[Standing], against: str) -> Markup:
    """A table of win rates with bars; the line in the middle is one half."""
    if not lines:
        return caption("No votes yet.")
    rows = [
        Markup("<tr><td>{}</td><td>{} of {}</td><td>{}</td><td>{}</td><td>{}</td></tr>").format(
            line.policy,
            line.picked,
            line.shown,
            line.duels if line.rate is not None else "–",
            f"{line.rate:.2f} ({line.low:.2f}–{line.high:.2f})" if line.rate is not None else "–",
            bar(line),
        )
        for line in lines
    ]
    names = ("policy", "picked", "votes that decide", f"win rate against {against}, 95 %", "")
    header = Markup("").join(Markup("<th scope='col'>{}</th>").format(name) for name in names)
    return Markup('<div class="demo-scroll"><table class="demo-table"><tr>{}</tr>{}</table></div>').format(
        header, Markup("").join(rows)
    )


def bar(line: Standing) -> Markup:
    """Interval and rate on a track from 0 to 1."""
    if line.rate is None:
        return Markup("")
    return Markup(
        '<div class="demo-bar"><i style="left:{:.1%};width:{:.1%}"></i><b style="left:{:.1%}"></b></div>'
    ).format(line.low, line.high - line.low, line.rate)
