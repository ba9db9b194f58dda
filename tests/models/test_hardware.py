"""Precision follows the device and its compute capability, and nothing else."""

import pytest
import torch

from helpers.models.hardware import Hardware, compute_dtype, precision, probe

T4 = Hardware("cuda", "Tesla T4", (7, 5), 14.7, 2, False, 1)
A100 = Hardware("cuda", "NVIDIA A100-SXM4-40GB", (8, 0), 39.6, 12, False, 1)
L4 = Hardware("cuda", "NVIDIA L4", (8, 9), 22.2, 12, False, 1)
CPU = Hardware("cpu", "CPU x86_64", None, 12.7, 2, False, 0)
CPU_WITH_BF16 = Hardware("cpu", "CPU x86_64", None, 64, 32, True, 0)
MPS = Hardware("mps", "Apple GPU", None, 16, 8, False, 1)


@pytest.mark.parametrize(
    ("hardware", "dtype", "word"),
    [
        (T4, torch.float16, "7.5 is below 8.0"),
        (A100, torch.bfloat16, "8.0"),
        (L4, torch.bfloat16, "8.9"),
        (CPU, torch.float32, "CPU"),
        (CPU_WITH_BF16, torch.float32, "CPU"),
        (MPS, torch.float32, "Apple"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_compute_dtype_and_its_reason(hardware, dtype, word):
    chosen, reason = compute_dtype(hardware)
    assert chosen == dtype
    assert word in reason


def test_torch_is_not_asked_about_bf16_which_a_t4_claims_by_emulation(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *a, **k: pytest.fail("asked torch"))
    assert compute_dtype(T4)[0] == torch.float16


def test_unquantised_models_stay_in_fp32_on_every_machine():
    assert {precision("none", hardware)[0] for hardware in (T4, A100, CPU, MPS)} == {torch.float32}


def test_probe_describes_this_machine():
    found = probe()
    assert found.device in ("cpu", "cuda", "mps")
    assert found.cpu_count >= 1
    assert found.memory_gib > 0.1
    assert (found.capability is None) == (found.device != "cuda")
    assert (found.gpu_count == 0) == (found.device == "cpu")


def test_probe_reads_a_cuda_card(monkeypatch):
    class Card:
        name, major, minor, total_memory = "Tesla T4", 7, 5, 15 * 1024**3

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Card)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = probe()
    assert (found.device, found.capability, found.memory_gib, found.gpu_count) == ("cuda", (7, 5), 15, 2)
    assert "the first of 2 GPUs" in str(found)
