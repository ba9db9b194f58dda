"""A folder that runs the demo as a Hugging Face Space on a CPU: code, model, adapters, prompts, card.

The folder holds only those modules of `helpers` that the demo imports, found by reading the import
statements, and the versions of the packages that they need.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path

import helpers
from helpers.apps.demo.offer import CARD, SPACE_MODEL, Offer, title_of
from helpers.errors import CourseError
from helpers.files import atomic_path, write_jsonl
from helpers.models.loading import resolve_model
from helpers.models.reward_model import ADAPTER
from helpers.text.datasets import load_examples

ENTRY = "helpers.apps.demo.offer"
PROMPTS = 150
ALWAYS = ("accelerate", "gradio", "Jinja2")  # gradio starts it; transformers imports the others itself
APP = '''"""The chat demo, as a Hugging Face Space or by `python app.py`."""

from pathlib import Path

from helpers.apps.demo.offer import run_folder

if __name__ == "__main__":
    run_folder(Path(__file__).parent)
'''
README = """---
title: {title}
colorFrom: blue
colorTo: green
sdk: gradio
sdk_version: {gradio}
python_version: "{python}"
app_file: app.py
suggested_hardware: cpu-basic
pinned: false
---

# {title}

Several versions of {model} answer the same prompt side by side: {policies}. The columns are shuffled and
unnamed until you vote. The gallery is picked by reward gain and says so.

- On your machine: `pip install -r requirements.txt`, then `python app.py`.
- As a Space: create one with the Gradio SDK and push this folder. It needs no GPU and no secrets.
- Votes lie in `votes/`, with the prompts of those who voted: say so to your
  visitors. A Space without persistent storage forgets them when it restarts.
{reference}
Made by `python -m helpers demo --export_space`.
"""


def export_space(offer: Offer, target: Path, title: str = "Which answer is better?") -> list[Path]:
    """Write the folder, whole or not at all; return its files.

    An earlier export is replaced. Raises CourseError for a directory that holds something else.
    """
    if target.exists() and not (target / CARD).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise CourseError(f"--export_space {target} exists and is no earlier export: name a new directory")
    with atomic_path(target) as draft:
        modules = copy_code(draft)
        inside = copy_weights(offer, draft)
        inside = copy_prompts(inside, draft)
        inside.save(draft)
        (draft / "app.py").write_text(APP, encoding="utf-8")
        needs = requirements(modules, quantized=needs_4bit(offer))
        (draft / "requirements.txt").write_text("\n".join(needs) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(card(offer, inside, title), encoding="utf-8")
    return sorted(path for path in target.rglob("*") if path.is_file())


def needs_4bit(offer: Offer) -> bool:
    """Whether the profile loads its base in 4 bits."""
    from helpers.models.profiles import PROFILES

    return offer.profile in PROFILES and PROFILES[offer.profile].quantization == "nf4"


def card(offer: Offer, inside: Offer, title: str) -> str:
    """The Space's README with its configuration."""
    reference = ""
    if inside.model_name == offer.model_name:
        reference = f"- The base model is fetched from the hub when the Space starts: `{offer.model_name}`.\n"
    return README.format(
        title=title,
        gradio=version("gradio"),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        model=title_of(offer.model_name),
        policies=", ".join(["base", *offer.adapters]),
        reference=reference,
    )


# ---------------------------------------------------------------------- code
def copy_code(draft: Path) -> list[Path]:
    """Copy the modules of `helpers` that the demo needs; return their sources."""
    root = Path(helpers.__file__).parent
    sources = needed_modules(ENTRY)
    for source in sources:
        place = draft / "helpers" / source.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
    return sources


def needed_modules(entry: str) -> list[Path]:
    """Sources of `entry` and of all modules of helpers it imports, at any depth, with their packages."""
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        source = source_of(name)
        if name in found or source is None:
            continue
        found[name] = source
        waiting += [name.rpartition(".")[0]] if "." in name else []
        waiting += [part for part in imported(source) if part.split(".")[0] == "helpers"]
    return sorted(found.values())


def source_of(name: str) -> Path | None:
    """The file of a module; None for a name that is none (a function that was imported)."""
    try:
        spec = importlib.util.find_spec(name) if name else None
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin else None


def imported(source: Path) -> set[str]:
    """Names that a file imports, lazily too: modules, and what is taken from them, which may be modules."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def requirements(sources: Sequence[Path], quantized: bool) -> list[str]:
    """Pinned lines for the packages that the sources import, as they are installed here.

    Optional ones that are not installed are left out. Local builds (torch 2.9+cpu) lose their mark.
    """
    modules = {name.split(".")[0] for source in sources for name in imported(source)}
    modules -= {"helpers", *sys.stdlib_module_names}
    providers = packages_distributions()
    packages = {providers[module][0] for module in modules if module in providers}
    packages |= set(ALWAYS) | ({"bitsandbytes"} if quantized else set())
    return [f"{name}=={re.split(r'[+]', version(name))[0]}" for name in sorted(packages, key=str.lower)]


# ---------------------------------------------------------------------- weights and prompts
def copy_weights(offer: Offer, draft: Path) -> Offer:
    """Copy adapters, reward model and a base that is a directory; a base of the hub stays a reference."""
    adapters = {}
    for name, path in offer.adapters.items():
        adapters[name] = f"adapters/{name}"
        copy_tree(Path(path), draft / adapters[name])
    reward = None
    if offer.reward_model:
        reward = "reward_model"
        copy_tree(Path(offer.reward_model), draft / reward)
    source, model_name = resolve_model(offer.model_name), offer.model_name
    if Path(source).is_dir() and not is_hub_id(offer.model_name):
        model_name = SPACE_MODEL
        copy_tree(Path(source), draft / model_name)
    return replace(offer, model_name=model_name, adapters=adapters, reward_model=reward)


def is_hub_id(name: str) -> bool:
    """True for owner/name where that is no directory here."""
    return name.count("/") == 1 and not Path(name).is_dir()


def copy_tree(source: Path, target: Path) -> None:
    """Copy what makes up a model or adapter: no checkpoints, no records of training."""
    keep = (".safetensors", ".json", ".jinja", ".model", ".txt")
    for file in sorted(source.iterdir()):
        if file.is_file() and file.suffix in keep:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.name)
        elif file.is_dir() and file.name in (ADAPTER, "model"):  # parts of a reward model
            copy_tree(file, target / file.name)


def copy_prompts(offer: Offer, draft: Path) -> Offer:
    """Copy held-out prompts, with the facts that a gold judge needs; fresh places for votes and gallery."""
    fresh = replace(offer, votes="votes/train_prefs.jsonl", gallery="gallery", prompts=None, split=None)
    if offer.prompts is None:
        return fresh
    try:
        examples = load_examples(offer.prompts, split=offer.split, kind="prompts").examples[:PROMPTS]
    except CourseError as problem:
        print(
            f"note: the exported page has no gallery, as its prompts cannot be read: {problem}",
            file=sys.stderr,
        )
        return fresh
    rows = [
        {"row_id": e.row_id, "prompt_messages": list(e.messages), "metadata": e.metadata.get("metadata", {})}
        for e in examples
    ]
    write_jsonl(draft / "prompts.jsonl", rows)
    return replace(fresh, prompts="prompts.jsonl")
