"""What mkdocs does not do by itself: pages for what lies outside of docs/, and the settings of each algorithm.

A link like `../rlplat/metrics.py` works in the repository. In the site it leads to `repository/rlplat/metrics.py`, a
page made of that file; so no link leaves the site, and `mkdocs build --strict` finds those that lead nowhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".ipynb": "json"}


def page_of(path: str) -> str:
    """The page of a file of the repository, from the root of the site: docs/ppo.md -> ppo.md."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith((".md", ".png", ".csv")) else f"repository/{path}.md"


def links_out(path: str, text: str) -> Iterator[str]:
    """The files outside of docs/ to which a page of the repository links."""
    for part in FENCE.split(text)[::2]:
        for _, target, _ in LINK.findall(part):
            file = target_of(path, target)
            if file is not None and not file.startswith("docs/") and (ROOT / file).is_file():
                yield file


def target_of(path: str, target: str) -> str | None:
    """The file of the repository that a link of this page names; None for other links."""
    name = target.partition("#")[0]
    if "://" in target or not name or name.startswith("mailto:"):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))


def rewritten(path: str, text: str) -> str:
    """A page of the repository with its links as they are in the site."""
    here = posixpath.dirname(page_of(path))

    def replace(match: re.Match[str]) -> str:
        file = target_of(path, match[2])
        if file is None or not (ROOT / file).is_file():
            return match[0]
        _, mark, anchor = match[2].partition("#")
        return f"{match[1]}{posixpath.relpath(page_of(file), here or '.')}{mark}{anchor}{match[3]}"

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts)


def shown(path: str) -> str:
    """A file of the repository as a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return rewritten(path, text)
    return f"# {path}\n\n~~~~{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n~~~~\n"


def outside_pages(pages: dict[str, str]) -> list[str]:
    """Every file outside of docs/ that these pages reach. pages: path in the repository -> text."""
    found: list[str] = []
    ahead = [file for path, text in pages.items() for file in links_out(path, text)]
    while ahead:
        file = ahead.pop()
        if file in found:
            continue
        found.append(file)
        if file.endswith(".md"):
            ahead += links_out(file, (ROOT / file).read_text(encoding="utf-8"))
    return sorted(found)


def settings_page(algo: str) -> str:
    """The settings of an algorithm, as `rlplat settings` has them."""
    from rlplat.cli.settings import rows_of
    from rlplat.rl.run.registry import load_algorithm

    lines = [f"# Settings of {algo}", "", "| setting | takes | default | meaning |", "|---|---|---|---|"]
    for row in rows_of(load_algorithm(algo).config_class):
        default = "required" if row["is_required"] else f"`{row['default']}`"
        cells = [f"`{row['key']}`", row["takes"], default, row["meaning"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: the pages that are made."""
    from mkdocs.structure.files import File

    from rlplat.rl.run.registry import algorithm_homes

    def add(uri: str, content: str | bytes) -> None:
        files.append(File.generated(config, uri, content=content))

    docs = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    for path in outside_pages(docs):
        is_text = (ROOT / path).suffix not in (".png", ".gz")
        add(page_of(path), shown(path) if is_text else (ROOT / path).read_bytes())
    for algo in algorithm_homes():
        add(f"settings/{algo}.md", settings_page(algo))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """mkdocs: links of the pages in docs/."""
    uri = page.file.src_uri
    return markdown if uri.startswith(("repository/", "settings/")) else rewritten(f"docs/{uri}", markdown)
