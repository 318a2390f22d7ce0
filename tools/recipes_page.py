"""Renders docs/recipes.md, and writes what follows from the settings into docs/recipes/*.yaml.

./tools/dev run -- python tools/recipes_page.py            # writes
./tools/dev run -- python tools/recipes_page.py --check    # fails if anything would change
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import recipes
from tools.recipes import Deployment, Recipe
from tools.workspace import ROOT

PAGE = ROOT / "docs" / "recipes.md"

_HEAD = """# Recipes

**Planned, not run on hardware.** Layouts that the [planner](planning.md) finds room for; every
figure is computed, none is measured, and which of them is fastest nobody has tried. Each recipe is
a file, `docs/recipes/MODEL.yaml`, of the form in `docs/recipes/schema.json`; this page, the
commands and the figures are made from their settings by `tools/recipes_page.py`, and CI fails when
they are stale. *Working* is activations, buffers of a step, graphs and HCCL. The longest context is
for the same number of requests at once. MODEL_DIR stands for the checkpoint; with several
servers, vLLM's own options for nodes and addresses come on top.
"""


def render(all_recipes: Sequence[Recipe]) -> str:
    """Return the page.

    Args:
        all_recipes: completed ones.
    """
    return "\n".join([_HEAD, *(line for recipe in all_recipes for line in _model(recipe))])


def _model(recipe: Recipe) -> Iterator[str]:
    yield f"## {recipe.model}\n"
    yield (
        "| | cards | tensor x data | experts | weights | tokens x requests | drafts "
        "| GiB: weights | working | caches | card | longest context |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for deployment in recipe.deployments:
        yield _row(deployment)
    yield ""
    for deployment in recipe.deployments:
        yield f"**{deployment.name}.** {deployment.why}\n"
        yield f"```\n{_wrapped(str(deployment.command))}\n```\n"


def _row(deployment: Deployment) -> str:
    memory = deployment.memory
    assert memory is not None
    assumed = " (assumed)" if deployment.memory_gib else ""
    cells = (
        deployment.name,
        f"{deployment.cards} x {deployment.device}",
        f"{deployment.tensor_parallel} x {deployment.data_parallel}",
        "shared out" if deployment.expert_parallel else "sliced",
        deployment.weight_format,
        f"{deployment.max_model_len:,} x {deployment.concurrency}",
        str(deployment.speculative_tokens),
        f"{memory.weights:.2f}",
        f"{memory.working:.2f}",
        f"{memory.caches:.2f}",
        f"{memory.card:g}{assumed}",
        f"{memory.longest_context:,}",
    )
    return f"| {' | '.join(cells)} |"


def _wrapped(command: str) -> str:
    return command.replace(" --", " \\\n    --")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check = parser.parse_args(arguments).check
    files = sorted(recipes.FOLDER.glob("*.yaml"))
    made = {file: recipes.completed(recipes.read(file)) for file in files}
    texts = {file: recipes.text_of(recipe) for file, recipe in made.items()}
    texts[recipes.FOLDER / "schema.json"] = json.dumps(recipes.schema(), indent=1) + "\n"
    texts[PAGE] = render(list(made.values()))
    stale = [file for file, text in texts.items() if not file.exists() or file.read_text() != text]
    if check:
        for file in stale:
            print(f"{file.relative_to(ROOT)} is stale", file=sys.stderr)
        return int(bool(stale))
    for file in stale:
        file.write_text(texts[file])
    return 0


if __name__ == "__main__":
    sys.exit(main())
