"""The page that `rlplat tune show --html` writes: one file, pictures inside, nothing from elsewhere, no script."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
pre { padding: .7rem 1rem; border: 1px solid #8886; border-radius: 6px; overflow-x: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; white-space: nowrap; }
th { border-bottom: 1px solid #8886; }
td.number, th.number { text-align: right; }
img { max-width: 100%; height: auto; background: white; border-radius: 6px; }
"""

_HEADINGS = {
    "learning_curves": "Learning curves",
    "pareto_front": "Pareto front",
    "importance": "Which parameters matter",
    "slices": "The metric against each parameter",
    "parallel_coordinates": "Parallel coordinates",
    "schedules": "Schedules",
}


def page(
    *,
    title: str,
    headline: str,
    config: str,
    table: tuple[Sequence[str], Sequence[Sequence[Any]]],
    notes: Sequence[str],
    pictures: Mapping[str, bytes],
) -> str:
    """config: YAML of the best one, empty where there is none; table: header and rows; pictures: PNG by name."""
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(headline)}</p>"]
    if config:
        parts += ["<h2>Best config</h2>", f"<pre>{escape(config)}</pre>"]
    header, rows = table
    if rows:
        parts += ["<h2>Best trials</h2>", _table(header, rows)]
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    for name, data in pictures.items():
        heading = _HEADINGS.get(name, name.replace("_", " "))
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        parts += [f"<h2>{escape(heading)}</h2>", f'<img src="{source}" alt="{escape(heading)}">']
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    numeric = [
        all(isinstance(row[column], int | float) and not isinstance(row[column], bool) for row in rows)
        for column in range(len(header))
    ]
    lines = [
        "<tr>"
        + "".join(_cell("th", name, right) for name, right in zip(header, numeric, strict=True))
        + "</tr>"
    ]
    for row in rows:
        cells = (_cell("td", _text(value), right) for value, right in zip(row, numeric, strict=True))
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _cell(tag: str, text: str, is_number: bool) -> str:
    look = ' class="number"' if is_number else ""
    return f"<{tag}{look}>{escape(text)}</{tag}>"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
