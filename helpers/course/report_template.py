"""The HTML of the course report, a Jinja template: one file, no scripts, nothing fetched."""

STYLE = """
:root { --ink:#1d2430; --soft:#5b6472; --line:#dfe3e8; --paper:#f6f7f9; --card:#fff; --good:#00755a;
  --bad:#b34700; --accent:#0072b2; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e9ee; --soft:#a3acb9; --line:#343b46; --paper:#14181e;
  --card:#1d232c; --good:#4fd1ab; --bad:#ff9d5c; --accent:#6cbcf0; } .plot { filter:brightness(.86); } }
* { box-sizing: border-box; }
body { margin:0; background:var(--paper); color:var(--ink);
  font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif; overflow-wrap:anywhere; }
main { max-width:1220px; margin:0 auto; padding:20px 20px 60px; }
h1 { font-size:1.75rem; line-height:1.2; margin:.4em 0 .2em; }
h2 { font-size:1.25rem; margin:2.4em 0 .5em; padding-top:.5em; border-top:1px solid var(--line); }
h3 { font-size:1rem; margin:1.4em 0 .5em; }
p, ul { margin:.5em 0; } .soft { color:var(--soft); } .small { font-size:.86rem; }
nav { display:flex; flex-wrap:wrap; gap:2px 16px; font-size:.9rem; margin-top:.8em; }
a { color:var(--accent); text-underline-offset:2px; }
.tiles { display:grid; grid-template-columns:repeat(auto-fill,minmax(142px,1fr)); gap:12px; margin:16px 0; }
.tile, .card { background:var(--card); border:1px solid var(--line); border-radius:10px; }
.tile { padding:12px 14px; } .tile b { display:block; font-size:1.6rem; line-height:1.25; font-weight:650; }
.tile span { font-size:.84rem; color:var(--soft); display:block; }
.passed { color:var(--good); font-weight:600; } .missed { color:var(--bad); font-weight:600; }
.tile .passed { color:var(--good); } .tile .missed { color:var(--bad); }
.scroll { overflow-x:auto; background:var(--card); border:1px solid var(--line); border-radius:10px; }
table { border-collapse:collapse; width:100%; font-size:.85rem; font-variant-numeric:tabular-nums; }
th, td { padding:7px 8px; text-align:right; white-space:nowrap; border-bottom:1px solid var(--line); }
th { font-weight:600; color:var(--soft); } tbody tr:last-child > * { border-bottom:0; }
th:first-child, td:first-child { text-align:left; position:sticky; left:0; background:var(--card); }
tbody th { color:var(--ink); }
.facts td, .facts th { white-space:normal; text-align:left; vertical-align:top; }
.facts th { width:12em; } .hint { display:none; }
.narrow { width:max-content; max-width:100%; } h3::first-letter, .tile > span:first-child::first-letter {
  text-transform:uppercase; }
.plots { display:grid; grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr)); gap:14px; }
.plot { margin:0; background:#fff; border:1px solid var(--line); border-radius:10px; padding:6px; }
.plot img { display:block; width:100%; height:auto; border-radius:6px; }
.pair { grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr)); align-items:start;
  margin-top:14px; }
.pair .plot:first-child { grid-row:span 2; }
.card { padding:14px 16px; margin:14px 0; }
.answers { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(215px,100%),1fr)); gap:10px;
  margin-top:10px; }
.answer { border:1px solid var(--line); border-radius:8px; padding:8px 10px; min-width:0; }
.answer h4 { margin:0 0 4px; font-size:.82rem; display:flex; justify-content:space-between; gap:8px; }
.text { white-space:pre-wrap; unicode-bidi:isolate; max-height:15em; overflow:auto; font-size:.9rem; }
.prompt { font-weight:600; white-space:pre-wrap; unicode-bidi:isolate; max-height:12em; overflow:auto; }
.tag { font-size:.76rem; color:var(--soft); border:1px solid var(--line); border-radius:99px; padding:0 8px;
  font-weight:400; white-space:nowrap; }
.score { font-size:.76rem; border-radius:99px; padding:0 8px; color:#111; white-space:nowrap;
  border:1px solid rgba(0,0,0,.15); }
td.heat { color:#111; }
details { margin:.6em 0; } summary { cursor:pointer; color:var(--accent); }
pre { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:10px 12px;
  font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; white-space:pre-wrap;
  margin:.5em 0; overflow-x:auto; }
@media (max-width:600px) { main { padding:12px 14px 40px; } h1 { font-size:1.4rem; }
  .tiles { grid-template-columns:1fr 1fr; } .facts th { width:7em; } .hint { display:block; }
  th, td { padding:6px 8px; } }
@media print { .text, .prompt { max-height:none; } body { background:#fff; } }
"""

# Of every page: `title`, `style`.
HEAD = """<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
"""

# `tiles`: main figures at the head of the page.
TILES = """<div class="tiles">
{%- for tile in tiles %}
<div class="tile"><span>{{ tile.name }}</span><b class="{{ tile.state }}">{{ tile.value }}</b>
<span>{{ tile.note }}</span></div>
{%- endfor %}
</div>
"""

TEMPLATE = """<!doctype html>
{%- macro plots(items) %}
{%- for item in items if item.png %}
<figure class="plot"><img alt="{{ item.alt }}" src="data:image/png;base64,{{ item.png }}"></figure>
{%- endfor %}
{%- endmacro %}
{%- macro left_out(items) %}
{%- for item in items if item.reason %}
<p class="soft small">{{ item.reason }}</p>
{%- endfor %}
{%- endmacro %}
{%- macro result(text) %}<span class="{{ text if text in ('passed', 'missed') else 'soft' }}">
{{- {'passed': '✓ passed', 'missed': '✗ missed'}.get(text, text) }}</span>{% endmacro %}
"""
TEMPLATE += (
    HEAD
    + """<h1>{{ title }}</h1>
<p>{{ summary }}</p>
<nav>{% for anchor, name in sections %}<a href="#{{ anchor }}">{{ name }}</a>{% endfor %}</nav>
"""
)
TEMPLATE += (
    TILES
    + """
<h2 id="run">What was run</h2>
<div class="scroll"><table class="facts"><tbody>
{%- for name, value in facts %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{%- endfor %}
</tbody></table></div>

<h2 id="results">Results</h2>
{%- if rows %}
<p class="soft small hint">Swipe the table sideways on a small screen.</p>
<div class="scroll"><table>
<thead><tr>{% for cell in header %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in rows %}
<tr><td>{{ row[0] }}</td><td>{{ result(row[1]) }}</td>
{%- for cell in row[2:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- else %}
<p>No method was evaluated.</p>
{%- endif %}
{%- for note in reading %}
<p class="soft small">{{ note }}</p>
{%- endfor %}
<div class="plots pair">{{ plots(method_plots) }}</div>
{{ left_out(method_plots) }}

<h2 id="reward">Reward model</h2>
<p>{{ reward_line or "No reward model was trained in this run." }}</p>
{%- if reward_line %}
<div class="plots">{{ plots(reward_plots) }}</div>
{{ left_out(reward_plots) }}
{%- if minimal_pairs %}
<h3>Minimal pairs: one property differs</h3>
<div class="scroll narrow"><table>
<thead><tr><th scope="col">property</th><th scope="col">ranked right</th></tr></thead>
<tbody>
{%- for name, value in minimal_pairs %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>{% endfor %}
</tbody></table></div>
{%- endif %}
{%- endif %}

<h2 id="curves">Training curves</h2>
{%- for run in runs %}
<h3>{{ run.name }}</h3>
{%- for note in run.notes %}<p class="soft small">{{ note }}</p>{% endfor %}
<div class="plots">{{ plots(run.plots) }}</div>
{{ left_out(run.plots) }}
{%- if run.config %}
<details><summary>Settings</summary><pre>{{ run.config }}</pre></details>
{%- endif %}
{%- else %}
<p>No training runs were given to this report.</p>
{%- endfor %}

<h2 id="families">Scores by family of prompts</h2>
{%- if families.rows %}
<p class="soft small">Mean total score, 0 to 1, of each family of held-out prompts; n prompts each.</p>
<div class="scroll"><table>
<thead><tr><th scope="col">family</th><th scope="col">n</th>
{%- for name in families.methods %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{%- for row in families.rows %}
<tr><td>{{ row.family }}</td><td>{{ row.n }}</td>
{%- for cell in row.cells %}
<td{% if cell.colour %} class="heat" style="background:{{ cell.colour }}"{% endif %}
{%- if cell.detail %} title="{{ cell.detail }}"{% endif %}>{{ cell.text }}</td>
{%- endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- else %}
<p>No scores by family were recorded.</p>
{%- endif %}

<h2 id="samples">The same prompts, every model</h2>
{%- for sample in samples %}
<article class="card">
<div><span class="tag">{{ sample.family }}</span></div>
<div class="prompt" dir="auto">{{ sample.prompt }}</div>
<div class="answers">
{%- for answer in sample.answers %}
<section class="answer"><h4><span>{{ answer.method }}</span>
{%- if answer.score %}<span class="score" style="background:{{ answer.colour }}">{{ answer.score }}</span>
{%- endif %}</h4>
<div class="text" dir="auto">{{ answer.text }}</div></section>
{%- endfor %}
</div>
</article>
{%- else %}
<p>No samples were recorded.</p>
{%- endfor %}

<h2 id="data">Data: what was kept and what was dropped</h2>
{%- for name, text in data_reports %}
<h3>{{ name }}</h3>
<pre>{{ text }}</pre>
{%- else %}
<p>No loading reports were recorded.</p>
{%- endfor %}

<h2 id="reproduce">How to reproduce</h2>
<pre>{{ command }}</pre>
{%- for note in reproduce %}
<p class="soft small">{{ note }}</p>
{%- endfor %}
</main>
</body>
</html>
"""
)
