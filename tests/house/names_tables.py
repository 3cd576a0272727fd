"""`python -m tests.house.names_tables` writes the tables of other libraries' names into the pages for who comes from
there. A test compares; run this where rlplat/rl/names_elsewhere.py was changed."""

from __future__ import annotations

import re
from pathlib import Path

from rlplat.rl.names_elsewhere import CLEANRL, RLLIB, STABLE_BASELINES3, Ours

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    DOCS / "from-sb3.md": ("Stable-Baselines3's name", STABLE_BASELINES3),
    DOCS / "from-rllib.md": ("RLlib's name", RLLIB),
    DOCS / "from-cleanrl.md": ("CleanRL's name", CLEANRL),
}


def table(head: str, names: dict[str, Ours]) -> str:
    rows = [f"| {head} | here | |", "|---|---|---|"]
    for theirs, ours in names.items():
        if theirs != ours.names or ours.meaning:
            rows.append(f"| {_quoted(theirs, ', ')} | {_quoted(ours.names, ' or ')} | {ours.meaning} |")
    same = [theirs for theirs, ours in names.items() if theirs == ours.names and not ours.meaning]
    return "\n".join(rows) + (f"\n\nThe same here: {_quoted(' '.join(same), ', ')}.\n" if same else "\n")


def _quoted(names: str, between: str) -> str:
    return between.join(f"`{name}`" for name in names.split())


def with_table(page: Path) -> str:
    head, names = PAGES[page]
    return re.sub(
        r"(<!-- names -->\n).*?(<!-- end of names -->)",
        lambda found: f"{found[1]}\n{table(head, names)}\n{found[2]}",
        page.read_text(),
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_table(page))
