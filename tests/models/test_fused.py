"""Fused log-probabilities and entropies equal those of full logits, in values and in gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from helpers.errors import CourseError
from helpers.models import fused
from helpers.models.bench_fused import bench_fused
from helpers.models.fused import fused_logprobs


def full(hidden, weight, labels, *, temperature=1.0, bias=None):
    """Log-probabilities and entropies from all logits at once."""
    scores = (linear(hidden, weight, bias) / temperature).log_softmax(-1)
    entropy = torch.special.entr(scores.exp()).sum(-1)
    return scores.gather(1, labels[:, None])[:, 0], entropy


def problem(positions=9, hidden=16, vocabulary=50, *, dtype=torch.float32, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    states = (torch.randn(positions, hidden, generator=generator) * spread).to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, hidden, generator=generator) / hidden**0.5).to(dtype)
    bias = torch.randn(vocabulary, generator=generator).to(dtype)
    labels = torch.randint(vocabulary, (positions,), generator=generator)
    return states, weight, bias, labels


def weighted(logprobs, entropy):
    """A loss in which every position and both results matter."""
    share = torch.linspace(0.5, 2.0, len(logprobs), dtype=logprobs.dtype)
    return (share * logprobs).sum() + (0.0 if entropy is None else (share.flip(0) * entropy).sum())


def assert_equal_to_full(tensors, labels, *, with_entropy, tolerance=1e-5, **options):
    states, weight, bias = tensors
    learned = [t for t in tensors if t is not None and t.requires_grad]
    ours = fused_logprobs(states, weight, labels, bias=bias, with_entropy=with_entropy, **options)
    options.pop("chunk_size", None)
    logprobs, entropy = full(states, weight, labels, bias=bias, **options)
    theirs = (logprobs, entropy if with_entropy else None)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    got = torch.autograd.grad(weighted(*ours), learned)
    want = torch.autograd.grad(weighted(*theirs), learned)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 7, 50, None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("head", ["frozen", "trained", "bias only", "head only"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_full_logits(with_entropy, chunk_size, temperature, head, with_bias):
    states, weight, bias, labels = problem()
    states.requires_grad_(head != "head only")
    weight.requires_grad_(head in ("trained", "head only"))
    bias = bias.requires_grad_(head in ("trained", "bias only")) if with_bias else None
    assert_equal_to_full(
        (states, weight, bias),
        labels,
        with_entropy=with_entropy,
        chunk_size=chunk_size,
        temperature=temperature,
    )


@given(
    positions=st.integers(1, 12),
    width=st.integers(1, 9),
    vocabulary=st.integers(1, 40),
    chunk=st.integers(1, 45),
    temperature=st.floats(0.1, 5.0),
    seed=st.integers(0, 2**16),
    trained=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_equals_full_logits_for_any_shape(positions, width, vocabulary, chunk, temperature, seed, trained):
    states, weight, bias, labels = problem(positions, width, vocabulary, dtype=torch.float64, seed=seed)
    tensors = (states, weight.requires_grad_(trained), bias)
    options = {"with_entropy": True, "chunk_size": chunk, "temperature": temperature}
    assert_equal_to_full(tensors, labels, tolerance=1e-9, **options)


@pytest.mark.parametrize("trained", [False, True])
def test_more_positions_than_are_taken_at_once(monkeypatch, trained):
    monkeypatch.setattr(fused, "ROWS_AT_ONCE", 4)
    states, weight, bias, labels = problem()
    weight.requires_grad_(trained)
    assert_equal_to_full((states, weight, bias), labels, with_entropy=True, chunk_size=13)


def test_gradient_at_a_vocabulary_of_151936():
    states, weight, _, labels = problem(3, 64, 151_936)
    assert_equal_to_full((states, weight, None), labels, with_entropy=True, chunk_size=20_000)


def test_rounding_at_a_vocabulary_of_151936_with_peaked_distributions():
    """Against float64, as full logits in float32 are themselves off by 2e-5 here."""
    states, weight, _, labels = problem(3, 64, 151_936, spread=3.0)
    ours = fused_logprobs(states, weight, labels, with_entropy=True, chunk_size=20_000)
    exact = states.detach().double().requires_grad_()
    theirs = full(exact, weight.double(), labels)
    for own, want in zip(ours, theirs, strict=True):
        (own_grad,) = torch.autograd.grad(own.sum(), states, retain_graph=True)
        (want_grad,) = torch.autograd.grad(want.sum(), exact, retain_graph=True)
        torch.testing.assert_close(own, want, rtol=1e-5, atol=1e-5, check_dtype=False)
        torch.testing.assert_close(own_grad, want_grad, rtol=2e-5, atol=2e-5, check_dtype=False)


@pytest.mark.parametrize("trained", [False, True])
def test_gradcheck(trained):
    states, weight, bias, labels = problem(3, 4, 7, dtype=torch.float64)
    weight, bias = weight.requires_grad_(trained), bias.requires_grad_(trained)

    def both(h, w, b):
        return fused_logprobs(h, w, labels, bias=b, temperature=0.8, with_entropy=True, chunk_size=3)

    assert torch.autograd.gradcheck(both, (states, weight, bias))


def test_temperature_reaches_entropy_and_logprobs():
    states, weight, _, labels = problem()
    hot = fused_logprobs(states, weight, labels, temperature=1e4, with_entropy=True)
    uniform = torch.full((9,), float(torch.tensor(50.0).log()))
    torch.testing.assert_close(hot[1], uniform, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hot[0], -uniform, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("trained", [False, True])
def test_half_precision_head_is_summed_in_float32(dtype, trained):
    """Against the same numbers in float64: only the rounding of gradients to their dtype remains."""
    states, weight, bias, labels = problem(dtype=dtype)
    learned = (states, weight.requires_grad_(), bias.requires_grad_()) if trained else (states,)
    ours = fused_logprobs(states, weight, labels, bias=bias, with_entropy=True, chunk_size=11)
    exact = [t.detach().double().requires_grad_() for t in (states, weight, bias)]
    theirs = full(*exact[:2], labels, bias=exact[2])
    assert ours[0].dtype == ours[1].dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, check_dtype=False)
    got = torch.autograd.grad(weighted(*ours), learned)
    want = torch.autograd.grad(weighted(*theirs), exact[: len(learned)])
    assert all(g.dtype == dtype for g in got)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2, check_dtype=False)


def test_float32_states_meet_a_bfloat16_head():
    states, weight, _, labels = problem()
    logprobs, _ = fused_logprobs(states, weight.bfloat16(), labels)
    want, _ = full(states, weight.bfloat16().float(), labels)
    torch.testing.assert_close(logprobs, want)
    assert torch.autograd.grad(logprobs.sum(), states)[0].dtype == torch.float32


@pytest.mark.parametrize("trained", [False, True])
def test_huge_logits_stay_finite(trained):
    states, weight, _, labels = problem(spread=1e5)
    weight.requires_grad_(trained)
    logprobs, entropy = fused_logprobs(states, weight, labels, with_entropy=True, chunk_size=7)
    grads = torch.autograd.grad(weighted(logprobs, entropy), [states, weight] if trained else [states])
    assert all(torch.isfinite(t).all() for t in (logprobs, entropy, *grads))
    assert (entropy >= -1e-3).all()


def test_impossible_tokens_leave_the_entropy_finite():
    states, weight, bias, labels = problem()
    bias[10:20] = -torch.inf
    labels = labels % 10
    logprobs, entropy = fused_logprobs(states, weight, labels, bias=bias, with_entropy=True, chunk_size=5)
    (grad,) = torch.autograd.grad(weighted(logprobs, entropy), states)
    want = full(states, weight, labels, bias=bias)
    torch.testing.assert_close((logprobs, entropy), want)
    assert torch.isfinite(grad).all()


def test_logprobs_never_exceed_zero():
    states, weight, _, _ = problem(64, spread=30.0)
    best = (states @ weight.t()).argmax(-1)
    logprobs, _ = fused_logprobs(states, weight, best, chunk_size=7)
    assert (logprobs <= 0).all()


def test_non_contiguous_inputs():
    states, weight, _, labels = problem()
    strided = states.detach().t().contiguous().t().requires_grad_()
    assert not strided.is_contiguous()
    every_second = labels.repeat_interleave(2)[::2]
    ours, _ = fused_logprobs(strided, weight.t().contiguous().t(), every_second)
    want, _ = fused_logprobs(states, weight, labels)
    torch.testing.assert_close(ours, want)
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), strided), torch.autograd.grad(want.sum(), states)
    )


@pytest.mark.parametrize("trained", [False, True])
def test_no_positions(trained):
    states, weight, bias, labels = problem(0)
    weight.requires_grad_(trained)
    logprobs, entropy = fused_logprobs(states, weight, labels, bias=bias, with_entropy=True)
    assert logprobs.shape == entropy.shape == (0,)
    (logprobs.sum() + entropy.sum()).backward()
    assert states.grad.shape == (0, 16)


def test_inputs_are_not_changed():
    states, weight, bias, labels = problem()
    before = [t.detach().clone() for t in (states, weight, bias, labels)]
    logprobs, entropy = fused_logprobs(states, weight, labels, bias=bias, with_entropy=True)
    weighted(logprobs, entropy).backward()
    assert all(torch.equal(a, b) for a, b in zip(before, (states, weight, bias, labels), strict=True))


def test_values_are_the_same_bits_with_and_without_gradients():
    states, weight, bias, labels = problem(40, 16, 300)
    options = {"bias": bias, "with_entropy": True, "chunk_size": 64}
    learning = fused_logprobs(states, weight, labels, **options)
    looking = fused_logprobs(states, weight, labels, **options, entropy_grad=False)
    training = fused_logprobs(states, weight.clone().requires_grad_(), labels, **options)
    with torch.no_grad():
        silent = fused_logprobs(states, weight, labels, **options)
    for other in (learning, looking, training):
        assert torch.equal(silent[0], other[0]) and torch.equal(silent[1], other[1])
    assert not silent[0].requires_grad and not looking[1].requires_grad


def test_autocast_of_the_caller_changes_nothing():
    states, weight, bias, labels = problem()
    want = fused_logprobs(states, weight, labels, bias=bias, with_entropy=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = fused_logprobs(states, weight, labels, bias=bias, with_entropy=True)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_only_one_result_used():
    for pick, trained in ((0, False), (1, False), (0, True), (1, True)):
        states, weight, _, labels = problem()
        weight.requires_grad_(trained)
        learned = [states, weight] if trained else [states]
        ours = fused_logprobs(states, weight, labels, with_entropy=True)[pick].sum()
        want = full(states, weight, labels)[pick].sum()
        torch.testing.assert_close(
            torch.autograd.grad(ours, learned), torch.autograd.grad(want, learned), rtol=1e-5, atol=1e-5
        )


def test_a_frozen_head_gets_no_gradient_and_keeps_one_vector_a_token():
    states, weight, _, labels = problem()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        logprobs, _ = fused_logprobs(states, weight, labels)
    logprobs.sum().backward()
    assert weight.grad is None
    assert [tuple(t.shape) for t in kept] == [(9, 16)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"labels": torch.full((9,), -100)}, "ignored positions"),
        ({"labels": torch.full((9,), 50)}, "outside 0..49"),
        ({"labels": torch.zeros(8, dtype=torch.long)}, "one for each of 9 positions"),
        ({"head_weight": torch.zeros(50, 8)}, "want"),
        ({"head_weight": torch.zeros(50, 16, dtype=torch.uint8)}, "stored as torch.uint8"),
    ],
)
def test_mistakes_are_named(change, message):
    states, weight, _, labels = problem()
    with pytest.raises(CourseError, match=message):
        fused_logprobs(**{"hidden": states, "head_weight": weight, "labels": labels, **change})


def test_benchmark_reports_both_ratios():
    """Small here; the bounds are checked at full size by `python -m helpers bench`."""
    result = bench_fused(512, 64, 60_000, rounds=1, threads=1)
    assert result["memory_ratio"] < 1 and result["time_ratio"] > 0
    assert result["mean_difference"] < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("trained", [False, True])
def test_on_a_gpu(dtype, trained):
    states, weight, bias, labels = (t.detach().cuda() for t in problem(vocabulary=700, dtype=dtype))
    learned = [states.requires_grad_(), *([weight.requires_grad_()] if trained else [])]
    ours = fused_logprobs(states, weight, labels, bias=bias, with_entropy=True, chunk_size=64)
    exact = [t.detach().double().requires_grad_() for t in (states, weight, bias)]
    theirs = full(*exact[:2], labels, bias=exact[2])
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3, check_dtype=False)
    got = torch.autograd.grad(ours[0].sum() + ours[1].sum(), learned)
    want = torch.autograd.grad(theirs[0].sum() + theirs[1].sum(), exact[: len(learned)])
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2, check_dtype=False)
