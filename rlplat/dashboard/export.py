"""One page as one file, to send to a colleague: with its script, its style and the answers that it would ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlplat.dashboard.pages import Pages
from rlplat.dashboard.server import STATIC


def export(pages: Pages, runs: list[str]) -> str:
    """HTML with the table of these runs, their pages and their comparison; videos are left out."""
    table = pages.runs()
    chosen = [row for row in table["runs"] if row["kind"] == "run" and row["run"] in runs]
    answers: dict[str, Any] = {"runs": {**table, "runs": chosen}}
    for name in runs:
        answers[f"run?run={name}"] = {**pages.run(name), "videos": []}
        answers[f"metrics?run={name}"] = pages.metrics(name)
        answers[f"log?run={name}"] = pages.log(name)
    page = (STATIC / "index.html").read_text()
    for tag, inlined in (
        ('<link rel="stylesheet" href="/static/uPlot.min.css">', f"<style>{_file('uPlot.min.css')}</style>"),
        ('<link rel="stylesheet" href="/static/style.css">', f"<style>{_file('style.css')}</style>"),
        (
            '<script src="/static/uPlot.iife.min.js"></script>',
            f"<script>{_file('uPlot.iife.min.js')}</script><script>const EXPORTED = {_script(answers)};</script>",
        ),
        ('<script src="/static/app.js"></script>', f"<script>{_file('app.js')}</script>"),
    ):
        assert tag in page
        page = page.replace(tag, inlined)
    return page


def _file(name: str) -> str:
    return (Path(STATIC) / name).read_text()


def _script(value: Any) -> str:
    """JSON that stands inside of a <script>: no `</script>` and no `<!--` of a name in it ends it."""
    return json.dumps(value).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
