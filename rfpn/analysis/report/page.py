"""The HTML page of a report: one file with everything in it, which opens without a network."""

import base64
import io
from html import escape
from string import Template

import numpy as np
import plotly.graph_objects as go
from PIL import Image
from plotly.offline import get_plotlyjs

from rfpn.analysis.report.run import Run, totals_of
from rfpn.analysis.samples import Sample

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
:root { color-scheme: light; --ink: #1e293b; --soft: #64748b; --line: #e2e8f0; --accent: #2563eb; }
* { box-sizing: border-box; }
body { margin: 0; background: #f1f5f9; color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
header, main { max-width: 1240px; margin: auto; padding: 0 16px; }
header { padding-top: 24px; }
h1 { margin: 0; font-size: 26px; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 0 0 12px; font-size: 19px; }
h3 { margin: 16px 0 6px; font-size: 15px; overflow-wrap: anywhere; }
p { margin: 4px 0 10px; color: var(--soft); }
nav a { margin-right: 16px; color: var(--accent); }
section { margin: 18px 0; padding: 18px; background: #fff; border: 1px solid var(--line); border-radius: 10px; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 14px 0; }
.tile { padding: 8px 16px; background: #fff; border: 1px solid var(--line); border-radius: 10px; }
.tile b { display: block; font-size: 20px; }
.tile span { color: var(--soft); font-size: 13px; }
/* by their number, not auto-fit: a chart is drawn before the next one is there, and would take its place */
.charts { display: grid; gap: 14px; --least: max(360px, 100% / var(--count) - 14px); }
.charts { grid-template-columns: repeat(auto-fill, minmax(min(100%, var(--least)), 1fr)); }
.charts > div { min-width: 0; }
.tables { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 250px), 1fr)); }
.sample { display: grid; gap: 10px; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); max-width: 1020px; }
figure { margin: 0; }
figure img { display: block; width: 100%; border-radius: 6px; }
figcaption { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
tr.changed code { color: var(--accent); font-weight: 600; }
summary { padding: 3px 0; cursor: pointer; font-weight: 600; }
input { width: 100%; max-width: 420px; padding: 7px 10px; font: inherit; border: 1px solid #94a3b8; border-radius: 6px; }
</style>
<script>$plotly</script>
</head>
<body>
<header><h1>$title</h1><p>$subtitle</p><nav>$links</nav><div class="tiles">$tiles</div></header>
<main>
$sections
</main>
<script>
// charts that were drawn before the page had its width
addEventListener("load", () => document.querySelectorAll(".js-plotly-plot").forEach(chart => Plotly.Plots.resize(chart)));
const search = document.getElementById("search");
if (search) search.addEventListener("input", () => {
  const words = search.value.toLowerCase();
  for (const group of document.querySelectorAll("#configuration details")) {
    let hits = 0;
    for (const row of group.querySelectorAll("tr")) {
      row.hidden = !row.textContent.toLowerCase().includes(words);
      hits += !row.hidden;
    }
    group.hidden = !hits;
    group.open = words ? hits > 0 : "first" in group.dataset;
  }
});
</script>
</body>
</html>
""")


def build_page(title: str, subtitle: str, tiles: dict[str, str], sections: dict[str, str]) -> str:
    """The page.

    Args:
        title, subtitle: plain text. tiles: short values by label, plain text.
        sections: HTML by heading; those that are empty are left out.
    """
    sections = {heading: content for heading, content in sections.items() if content}
    anchors = {heading: heading.lower().replace(" ", "-") for heading in sections}
    return _PAGE.substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        plotly=get_plotlyjs(),
        links="".join(f'<a href="#{anchor}">{heading}</a>' for heading, anchor in anchors.items()),
        tiles="".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
            for label, value in tiles.items()
        ),
        sections="\n".join(
            f'<section id="{anchors[heading]}"><h2>{heading}</h2>\n{content}\n</section>'
            for heading, content in sections.items()
        ),
    )


def note(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def charts_html(figures: list[go.Figure]) -> str:
    """Figures in as many columns as the window has room for."""
    options = {"include_plotlyjs": False, "full_html": False, "auto_play": False}
    options["config"] = {"displayModeBar": False, "responsive": True}
    parts = [f"<div>{figure.to_html(default_height=f'{figure.layout.height}px', **options)}</div>" for figure in figures]
    return f'<div class="charts" style="--count: {len(parts)}">{"".join(parts)}</div>' if parts else ""


def data_uri(picture: np.ndarray) -> str:
    """A picture (H, W, 3), RGB uint8, as text that stands for its file."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def samples_html(samples: list[Sample]) -> str:
    """Image, ground truth and prediction of each sample in a row."""
    rows = []
    for sample in samples:
        figures = "".join(
            f'<figure><img src="{data_uri(picture)}" alt="{title}"><figcaption>{title}</figcaption></figure>'
            for title, picture in sample.panels().items()
        )
        rows.append(f'<h3>{escape(sample.name)}</h3><div class="sample">{figures}</div>')
    return "".join(rows)


def configuration_html(run: Run) -> str:
    """All settings, folded by section and searchable; above them those that differ from the defaults."""
    if not run.settings:
        return ""
    groups: dict[str, dict[str, object]] = {}
    for key, value in run.settings.items():
        words = key.split(".")
        section = ".".join(words[:2]) if words[0] == "MODEL" and len(words) > 2 else words[0]
        groups.setdefault(section if len(words) > 1 else "general", {})[key] = value
    changed = {key: run.settings[key] for key in run.changed}
    parts = [
        '<input id="search" type="search" placeholder="search keys and values" aria-label="search the configuration">',
        _settings_html(f"Different from the defaults ({len(changed)})", changed, run.changed, "open data-first"),
    ]
    parts += [_settings_html(f"{name} ({len(values)})", values, run.changed) for name, values in groups.items()]
    return note("Values that differ from the defaults are coloured.") + "".join(parts)


def scores_html(run: Run) -> str:
    """Tables of every task's scores at the last evaluation and at the best one, and of single classes."""
    parts = []
    for task, series in run.scores.items():
        totals = totals_of(series)
        if not totals:
            continue
        main = next((name for name in ("PQ", "IoU", "AP", "mIoU") if name in totals), None)
        iterations, values = totals[main or next(iter(totals))]
        best = max(range(len(values)), key=lambda i: (values[i] == values[i], values[i]))  # NaN is below all
        head = {f"last, iteration {iterations[-1]}": iterations[-1]}
        # only a main score: the highest residual, say, is the worst
        if main and best < len(values) - 1:
            head[f"best {main}, iteration {iterations[best]}"] = iterations[best]
        rows = [
            [name, *(number(dict(zip(x, y)).get(iteration, float("nan"))) for iteration in head.values())]
            for name, (x, y) in totals.items()
        ]
        table = _table(["", *head], rows)
        parts.append(f"<div><h3>{escape(task)}</h3>{table}</div>")
    classes = _class_table(run)
    folded = f"<details><summary>single classes, last evaluation</summary>{classes}</details>" if classes else ""
    return (f'<div class="tables">{"".join(parts)}</div>' if parts else "") + folded


def number(value: float) -> str:
    """Four digits that count."""
    return "–" if value != value else f"{value:.4g}"


def _class_table(run: Run) -> str:
    rows, head = {}, []
    for task, series in run.scores.items():
        for name, (_, values) in series.items():
            score, dash, of_class = name.partition("-")
            if dash:
                head += [column] if (column := f"{task} {score}") not in head else []
                rows.setdefault(of_class, {})[column] = number(values[-1])
    table = [[of_class, *(cells.get(column, "") for column in head)] for of_class, cells in rows.items()]
    return _table(["class", *head], table) if table else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        first, *others = map(escape, cells)
        return f"<tr><{tag}>{first}</{tag}>" + "".join(f'<{tag} class="number">{c}</{tag}>' for c in others) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(head, "th")}{body}</table></div>'


def _settings_html(title: str, settings: dict[str, object], changed: list[str], state: str = "") -> str:
    rows = "".join(
        f'<tr class="{"changed" if key in changed else ""}"><td><code>{escape(key)}</code></td>'
        f"<td><code>{escape(repr(value))}</code></td></tr>"
        for key, value in settings.items()
    )
    return f'<details {state}><summary>{escape(title)}</summary><div class="scroll"><table>{rows}</table></div></details>'
