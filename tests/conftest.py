"""What every test shares: no network, fixed threads, small random models, real files where there are any."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

# Before anything imports torch or huggingface_hub: they read these once.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "disabled")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

import pytest

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _threads() -> None:
    """Fix the number of torch threads: a result must not depend on how many the machine happens to have."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def tiny_dir() -> Path:
    """The bundled world, `data/tiny`."""
    path = ROOT / "data" / "tiny"
    if not path.is_dir():
        pytest.skip("data/tiny is not built yet: python -m helpers data build-tiny")
    return path


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real files beside the checkout (or where COURSE_REAL_DATA says); never committed."""
    path = Path(os.environ.get("COURSE_REAL_DATA", ROOT.parent / "shared" / "real_data"))
    if not path.is_dir():
        pytest.skip(f"the real data are not at {path}; set COURSE_REAL_DATA to their folder")
    return path


@pytest.fixture(scope="session")
def random_qwen2() -> Callable[..., Qwen2ForCausalLM]:
    """A factory of small Qwen2 models with random weights, fp32, in eval mode, equal for equal arguments."""

    def make(
        vocab: int = 64, hidden: int = 32, layers: int = 2, seed: int = 0, **overrides
    ) -> Qwen2ForCausalLM:
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        settings = {
            "vocab_size": vocab,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            "initializer_range": 0.2,  # larger than usual, so that untrained logits are far from uniform
        }
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Qwen2ForCausalLM(Qwen2Config(**{**settings, **overrides})).eval()

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    for item in items:
        if item.get_closest_marker("gpu"):
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
