"""A report as one HTML page: no scripts, nothing fetched, readable on a narrow screen and on paper."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup

from helpers.course.report import heat, template_environment
from helpers.course.report_blocks import Answer, Document, clean_text
from helpers.course.report_template import HEAD, STYLE, TILES

MORE_STYLE = """
.wide { width:100% !important; }
.words td, .words th { white-space:normal; text-align:left; vertical-align:top; min-width:7em; }
.words td:first-child, .words th:first-child { min-width:6em; max-width:14em; }
.card .tag { font-weight:600; white-space:normal; display:inline-block; }
.answers .answer h4 { align-items:baseline; }
section { display:flow-root; } .lead { font-size:1.05rem; max-width:70ch; }
main > section > p { max-width:90ch; } .plots { align-items:start; }
.scroll, .plots { margin:12px 0; } .scroll { width:fit-content; max-width:100%; min-width:min(100%,34em); }
.tall { grid-row:span 2; }
@media (max-width:600px) {
  .words, .words tbody, .words tr, .words td { display:block; max-width:none !important; }
  .words thead { display:none; } .words tr { border-bottom:1px solid var(--line); padding:8px 0; }
  .words td { border:0; padding:2px 10px; position:static; } .words td:first-child { font-weight:600; }
  .words td:not(:first-child)::before { content:attr(data-name) ": "; color:var(--soft); } }
@media print { .plot, .card, tr { break-inside:avoid; } nav { display:none; } }
"""

TEMPLATE = """<!doctype html>
"""
TEMPLATE += (
    HEAD
    + """<h1>{{ document.title }}</h1>
<p class="lead">{{ document.summary }}</p>
<nav>{% for part in document.sections %}<a href="#{{ part.anchor }}">{{ part.title }}</a>{% endfor %}</nav>
{%- if document.tiles %}
"""
)
TEMPLATE += (
    TILES
    + """{%- endif %}
{%- for part in document.sections %}
<section>
<h2 id="{{ part.anchor }}">{{ part.title }}</h2>
{%- for kind, run in grouped(part.blocks) %}
{%- if kind == "Picture" %}
<div class="plots">
{%- for block in run %}
<figure class="plot{{ " tall" if block.tall }}">
<img alt="{{ block.title }}" src="data:image/png;base64,{{ block.png }}"></figure>
{%- endfor %}
</div>
{%- else %}
{%- for block in run %}
{%- if kind == "Text" %}
<p{% if block.soft %} class="soft small"{% endif %}>{{ block.text }}</p>
{%- elif kind == "Heading" %}
<h3>{{ block.text }}</h3>
{%- elif kind == "Table" %}
<div class="scroll{{ " wide" if block.words }}"><table{{ " class=words" if block.words }}>
<thead><tr>{% for cell in block.header %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in block.rows %}
<tr>{% for cell in row %}<td{{ mark(cell) }} data-name="{{ block.header[loop.index0] }}">{{ cell }}</td>
{%- endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- elif kind == "Pre" %}
<details><summary>{{ block.title }}</summary><pre>{{ block.text }}</pre></details>
{%- elif kind == "Card" %}
<article class="card">
<div><span class="tag">{{ block.tag }}</span></div>
<div class="prompt" dir="auto">{{ block.prompt }}</div>
<div class="answers">
{%- for answer in block.answers %}
<section class="answer"><h4><span>{{ answer.name }}</span>
{%- if answer.label %}<span class="score"{{ colour(answer) }}>{{ answer.label }}</span>{% endif %}</h4>
<div class="text" dir="auto">{{ answer.text }}</div></section>
{%- endfor %}
</div>
</article>
{%- endif %}
{%- endfor %}
{%- endif %}
{%- endfor %}
</section>
{%- endfor %}
</main>
</body>
</html>
"""
)


def page_of(document: Document) -> str:
    """The whole page."""
    template: jinja2.Template = template_environment().from_string(TEMPLATE)
    html = template.render(
        document=document,
        title=document.title,
        tiles=document.tiles,
        style=Markup(STYLE + MORE_STYLE),
        grouped=grouped,
        mark=mark,
        colour=colour,
    )
    return clean_text(html)


def grouped(blocks: Any) -> list[tuple[str, list[Any]]]:
    """Neighbours of one kind together: figures stand side by side where there is room."""
    runs: list[tuple[str, list[Any]]] = []
    for block in blocks:
        kind = type(block).__name__
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(block)
    return runs


def mark(cell: str) -> Markup:
    """The class of a cell that says whether a threshold was reached."""
    return Markup(f' class="{cell}"') if cell in ("passed", "missed") else Markup("")


def colour(answer: Answer) -> Markup:
    """The background of a score."""
    return Markup(f' style="background:{heat(answer.score)}"') if answer.score is not None else Markup("")
