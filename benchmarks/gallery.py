"""Puts a run's best agent into rlplat/gallery with its card: what is played is what the card says.

    python -m benchmarks.gallery runs/lunarlander lunarlander [COMMIT]      # COMMIT: at which it was trained

The weights of `checkpoints/best` (of other seeds of episodes than those that chose it, 100 episodes are played for the
card), the settings, and nothing that training needs.
"""

from __future__ import annotations

import argparse
import re
import shutil
from datetime import date
from pathlib import Path

from benchmarks.measure import ROOT, hardware
from rlplat import load
from rlplat.config import dump_values, load_yaml
from rlplat.figures import figure
from rlplat.paths import GALLERY, expanded
from rlplat.rl.run.evaluation import evaluation_metrics

EPISODES, SEED = 100, 1_000_003
PAGE = ROOT / "docs/gallery.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery", description=__doc__)
    parser.add_argument("run", type=expanded, metavar="RUN")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("commit", metavar="COMMIT", nargs="?", help="at which it was trained (default: this one)")
    options = parser.parse_args()
    folder: Path = GALLERY / options.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(options.run / "checkpoints" / "best", folder / "checkpoints" / "best")
    settings = {key: value for key, value in load_yaml(options.run / "config.yaml").values.items() if key != "code"}
    (folder / "config.yaml").write_text(dump_values(settings))
    agent = load(folder, seed=SEED)
    figures = evaluation_metrics(agent.evaluate(EPISODES))
    info = hardware(["rlplat", "gymnasium", "torch", "numpy"])
    env_steps = agent.checkpoint.info.env_steps
    mean, std, least, most = (figure(figures[f"eval/return_{name}"]) for name in ("mean", "std", "min", "max"))
    (folder / "README.md").write_text(
        f"# {options.name}\n\n"
        f"{settings['algo']} on {settings['env']}, seed {settings['seed']}: the best of its evaluations, after "
        f"{env_steps:,} env steps. The settings are in config.yaml.\n\n"
        "| episodes played for this card | return, mean ± deviation | least, most |\n|---|---|---|\n"
        f"| {EPISODES}, seed {SEED} | {mean} ± {std} | {least}, {most} |\n\n"
        f"Trained on {info['cpu']}, {info['cores']} cores; commit {options.commit or info['commit']}, {date.today()}; "
        f"{info['packages']}.\n"
    )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size:,} bytes, return {figure(figures['eval/return_mean'])}")
    write_table()


def write_table() -> None:
    """Of all cards, into the page."""
    lines = ["| | algorithm, environment | return | env steps |", "|---|---|---|---|"]
    for card in sorted(GALLERY.glob("*/README.md")):
        text = card.read_text()
        algo, env, env_steps = re.findall(r"^(\S+) on (\S+), seed .*? after ([\d,]+) env", text, re.MULTILINE)[0]
        returned = re.findall(r"^\| \d+, seed \d+ \| (.*?) \|", text, re.MULTILINE)[0]
        lines.append(f"| `gallery/{card.parent.name}` | {algo}, {env} | {returned} | {env_steps} |")
    before, _, rest = PAGE.read_text().partition("<!-- agents -->\n")
    PAGE.write_text(f"{before}<!-- agents -->\n\n" + "\n".join(lines) + "\n\n<!-- end" + rest.partition("<!-- end")[2])


if __name__ == "__main__":
    main()
