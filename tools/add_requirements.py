"""Install what lessons import and this Python lacks, for notebooks on Colab and Kaggle.

    python tools/add_requirements.py

Packages that came with the machine and fit its GPU driver stay as they are. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

KEPT = ("torch", "torchvision", "torchaudio", "numpy")


def main() -> int:
    """Ask pip; return its status."""
    path = Path(__file__).resolve().parents[1] / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["lessons"]
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "kept.txt")
        pins.write_text("".join(f"{name}=={version}\n" for name, version in kept().items()), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        return subprocess.call([*pip, "-c", str(pins), *needed])


def kept() -> dict[str, str]:
    """Versions of the packages that must not be replaced, as they are installed."""
    found = {}
    for name in KEPT:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
