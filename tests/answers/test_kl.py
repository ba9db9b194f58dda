"""Lesson 06: estimators of KL(policy ‖ reference), against the sum over a whole small vocabulary."""

from __future__ import annotations

import math

import pytest
import torch

from solutions.answers import approx_kl
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates

VOCABULARY = 7
ALL = torch.ones(1, VOCABULARY, dtype=torch.bool)


def distributions(spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of policy and reference over the vocabulary, float64."""
    return random(VOCABULARY, scale=spread).log_softmax(0), random(
        VOCABULARY, seed=1, scale=spread
    ).log_softmax(0)


def exact_kl(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Σ π (log π − log π_ref)."""
    return (policy.exp() * (policy - reference)).sum()


def per_sample(policy: torch.Tensor, reference: torch.Tensor, estimator: str) -> torch.Tensor:
    """The estimate from each token of the vocabulary as the only sample."""
    one = torch.ones(1, 1, dtype=torch.bool)
    pairs = zip(policy, reference, strict=True)
    return torch.stack([approx_kl(p.view(1, 1), r.view(1, 1), one, estimator) for p, r in pairs])


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator: str, spread: float) -> None:
    """Each sample weighted by its probability under the policy: the expectation, exactly."""
    policy, reference = distributions(spread)
    expectation = (policy.exp() * per_sample(policy, reference, estimator)).sum()
    near(expectation, exact_kl(policy, reference), 1e-5)


def test_k2_is_biased_but_little_so_where_the_policies_are_near() -> None:
    def expectation(spread: float) -> tuple[float, float]:
        policy, reference = distributions(spread)
        k2 = (policy.exp() * per_sample(policy, reference, "k2")).sum()
        return float(k2), float(exact_kl(policy, reference))

    (far, far_exact), (close, close_exact) = expectation(3.0), expectation(0.05)
    assert abs(far / far_exact - 1) > 0.1
    assert abs(close / close_exact - 1) < 0.02


def test_k2_and_k3_are_never_negative_and_k1_may_be() -> None:
    policy, reference = distributions(2.0)
    assert (per_sample(policy, reference, "k3") >= 0).all()
    assert (per_sample(policy, reference, "k2") >= 0).all()
    assert (per_sample(policy, reference, "k1") < 0).any()


def test_the_divergence_is_that_of_the_policy_from_the_reference() -> None:
    """Exchanging the two gives another number: the sign and the direction are fixed."""
    policy, reference = distributions(2.0)
    ours = (policy.exp() * per_sample(policy, reference, "k3")).sum()
    other = (policy.exp() * per_sample(reference, policy, "k3")).sum()
    separates("policy and reference exchanged", ours, exact_kl(policy, reference), other)


def test_k3_varies_less_than_k1() -> None:
    policy, reference = distributions(0.5)

    def variance(estimator: str) -> float:
        values = per_sample(policy, reference, estimator).double()
        mean = (policy.exp() * values).sum()
        return float((policy.exp() * (values - mean) ** 2).sum())

    assert variance("k3") < variance("k1")


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_estimate_is_0_where_the_policies_agree(estimator: str) -> None:
    same = random(2, 3).float()
    assert approx_kl(same, same, torch.ones(2, 3, dtype=torch.bool), estimator) == 0.0


def test_small_divergences_are_not_lost_to_rounding() -> None:
    """exp(−d) − 1 + d in float32 is off by 1e-7 where the value is 5e-9; expm1 keeps two digits more."""
    d = torch.full((1, 1), 1e-4)
    assert approx_kl(d, torch.zeros(1, 1), torch.ones(1, 1)).item() == pytest.approx(5e-9, abs=1e-11)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradient_of_an_estimate(estimator: str) -> None:
    logp, ref = random(2, 3), random(2, 3, seed=1)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    formula = {"k1": lambda d: d, "k2": lambda d: d**2 / 2, "k3": lambda d: math.exp(-d) - 1 + d}[estimator]

    def oracle(x: torch.Tensor) -> float:
        kept = [(float(x[i, j]), float(ref[i, j])) for i, j in mask.nonzero().tolist()]
        return sum(formula(a - b) for a, b in kept) / len(kept)

    near(approx_kl(logp, ref, mask, estimator), oracle(logp))
    near(
        gradient_of(lambda x: approx_kl(x, ref, mask, estimator), logp), finite_difference(oracle, logp), 1e-4
    )


def test_as_a_loss_k1_knows_nothing_of_the_reference_and_k2_has_the_true_gradient() -> None:
    """The slip kl_k1_as_loss_term: its expected gradient is that of Σ π = 1, zero.

    Expectations over samples of the policy, so the weights are constants; gradients in the logits.
    """
    logits, reference = random(VOCABULARY, scale=1.5), distributions()[1]
    weight = logits.log_softmax(0).exp()

    def expected_gradient(estimator: str, ref: torch.Tensor) -> torch.Tensor:
        def loss(x: torch.Tensor) -> torch.Tensor:
            return (weight.float() * per_sample(x.log_softmax(0), ref.float(), estimator)).sum()

        return gradient_of(loss, logits)

    right = finite_difference(lambda x: exact_kl(x.log_softmax(0), reference), logits)
    separates(
        "kl_k1_as_loss_term",
        expected_gradient("k2", reference),
        right,
        expected_gradient("k1", reference),
        1e-4,
    )
    near(expected_gradient("k1", reference), 0.0)
    backwards = finite_difference(lambda x: exact_kl(reference, x.log_softmax(0)), logits)
    near(expected_gradient("k3", reference), backwards, 1e-4)  # GRPO's term pulls like KL(reference ‖ policy)


# ---------------------------------------------------------------- responses of two words out of four
WORDS = 4
SEQUENCES = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))  # all 16, (16, 2)


def tables(seed: int, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the first word (4,) and of the second after each first (4, 4), float64."""
    return random(WORDS, seed=seed, scale=spread), random(WORDS, WORDS, seed=seed + 10, scale=spread)


def token_logprobs(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Of both words of every sequence; (16, 2)."""
    a, b = SEQUENCES.unbind(dim=1)
    return torch.stack([first.log_softmax(0)[a], second.log_softmax(1)[a, b]], dim=1)


def sequence_kl(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Σ over whole sequences of π (log π − log π_ref)."""
    whole, other = policy.sum(dim=1), reference.sum(dim=1)
    return (whole.exp() * (whole - other)).sum()


def each_sequence(policy: torch.Tensor, reference: torch.Tensor, estimator: str) -> torch.Tensor:
    """Twice the token mean: the estimate from each sequence as the only sample; (16,)."""
    both = torch.ones(1, 2, dtype=torch.bool)
    pairs = zip(policy, reference, strict=True)
    return torch.stack([2 * approx_kl(p[None], r[None], both, estimator) for p, r in pairs])


@pytest.mark.parametrize("spread", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_over_all_sequences_the_tokens_estimates_add_up_to_the_divergence_of_sequences(
    estimator: str, spread: float
) -> None:
    """The chain rule: KL of sequences is the expected sum of the KLs of their next words."""
    policy, reference = (token_logprobs(*tables(seed, spread)) for seed in (0, 1))
    weight = policy.sum(dim=1).exp()
    near(weight.sum(), 1.0)
    near((weight * each_sequence(policy, reference, estimator)).sum(), sequence_kl(policy, reference), 1e-5)


def test_k2_is_off_by_the_third_order_of_the_distance() -> None:
    """At half the distance the divergence is a quarter, and what k2 misses an eighth."""

    def at(distance: float) -> tuple[float, float]:
        start, move = tables(0), tables(1)
        policy = token_logprobs(*start)
        reference = token_logprobs(*(x + distance * y for x, y in zip(start, move, strict=True)))
        exact = sequence_kl(policy, reference)
        k2 = (policy.sum(dim=1).exp() * each_sequence(policy, reference, "k2")).sum()
        return float(exact), float(k2 - exact)

    (kl, missed), (kl_half, missed_half) = at(0.2), at(0.1)
    assert kl / kl_half == pytest.approx(4, rel=0.15)
    assert missed / missed_half == pytest.approx(8, rel=0.15)
    assert abs(at(2.0)[1]) > 0.1


def test_a_sequence_that_the_reference_prefers_counts_negative_in_k1_and_positive_in_k3() -> None:
    policy, reference = (token_logprobs(*tables(seed)) for seed in (0, 1))
    preferred = policy.sum(dim=1) < reference.sum(dim=1)
    k1, k3 = (each_sequence(policy, reference, name) for name in ("k1", "k3"))
    assert 0 < preferred.sum() < len(preferred)
    assert torch.equal(k1 < 0, preferred) and (k3 > 0).all()
    near(each_sequence(reference, policy, "k1"), -k1)


def test_over_sequences_k1_as_a_loss_has_no_gradient_and_k2_that_of_each_word_alone() -> None:
    """k2 a token knows what its own word costs, not which second words the first leads to: to charge that is
    what PPO's per-token rewards, with k1 in the return-to-go, are for."""
    start, reference = tables(0), token_logprobs(*tables(1))
    weight = token_logprobs(*start).sum(dim=1).exp()

    def expected(estimator: str, place: int) -> torch.Tensor:
        def loss(x: torch.Tensor) -> torch.Tensor:
            logp = token_logprobs(*(x if i == place else y.float() for i, y in enumerate(start)))
            return (weight.float() * each_sequence(logp, reference.float(), estimator)).sum()

        return gradient_of(loss, start[place])

    def true(place: int) -> torch.Tensor:
        def divergence(x: torch.Tensor) -> torch.Tensor:
            logp = token_logprobs(*(x if i == place else y for i, y in enumerate(start)))
            return sequence_kl(logp, reference)

        return finite_difference(divergence, start[place])

    for place in (0, 1):
        near(expected("k1", place), 0.0)
        assert true(place).abs().max() > 0.05
    near(expected("k2", 1), true(1), 1e-4)
    alone = finite_difference(lambda x: exact_kl(x.log_softmax(0), tables(1)[0].log_softmax(0)), start[0])
    separates("what the first word leads to", expected("k2", 0), alone, true(0), 1e-4)


def test_masked_places_may_hold_nan_or_infinity() -> None:
    mask = torch.tensor([[True, False, False, False]])
    for rubbish in (math.nan, math.inf, -math.inf):
        logp = torch.tensor([[-1.0, rubbish, -1.0, rubbish]])
        ref = torch.tensor([[-2.0, -1.0, rubbish, rubbish]])
        for estimator, right in {"k1": 1.0, "k2": 0.5, "k3": math.exp(-1)}.items():
            near(approx_kl(logp, ref, mask, estimator), right)
            assert torch.isfinite(
                gradient_of(lambda x, r=ref, e=estimator: approx_kl(x, r, mask, e), logp)
            ).all()


def test_without_tokens_the_divergence_is_0() -> None:
    none = torch.zeros(2, 3, dtype=torch.bool)
    logp = random(2, 3).float()
    assert approx_kl(logp, -logp, none) == 0.0
    near(gradient_of(lambda x: approx_kl(x, -logp, none), logp), 0.0)
    assert approx_kl(torch.zeros(0, 4), torch.zeros(0, 4), torch.zeros(0, 4)) == 0.0


def test_no_clamp_hides_a_token_that_the_reference_finds_far_likelier() -> None:
    """The contract has no clamp: up to a log-ratio of −88 the value is finite in float32, beyond it infinite,
    and the trainer skips and counts that step."""
    one = torch.ones(1, 1, dtype=torch.bool)
    near(approx_kl(torch.tensor([[-80.0]]), torch.zeros(1, 1), one), math.exp(80) - 81)
    assert approx_kl(torch.tensor([[-100.0]]), torch.zeros(1, 1), one) == math.inf


def test_another_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="k4"):
        approx_kl(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), "k4")


def log_ratio_of(k3: float) -> float:
    """The positive d with exp(−d) − 1 + d = k3, by bisection."""
    low, high = 0.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if math.exp(-middle) - 1 + middle < k3 else (low, middle)
    return low


def test_slips_of_approx_kl() -> None:
    same, one = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    for wrong in (1.0, -1.0):  # exp(−d) + d, exp(−d) − 1 − 1…
        separates("kl_k3_missing_term", approx_kl(same, same, one), 0.0, wrong)
    for d in (2.0, -2.0):
        ours = approx_kl(torch.tensor([[d]]), same, one)
        separates("kl_k3_missing_term", ours, math.exp(-d) - 1 + d, math.expm1(-d))

    d = torch.full((2, 3), log_ratio_of(0.1))
    mask = torch.tensor([[True, False, False], [True, True, True]])
    separates("kl_row_sum_then_batch_mean", approx_kl(d, torch.zeros(2, 3), mask), 0.1, 0.2)

    d = torch.tensor([[log_ratio_of(0.4), 0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, False, False, False]])
    separates("kl_mean_outside_mask", approx_kl(d, torch.zeros(1, 4), mask), 0.4, 0.1)


def test_slips_of_a_masked_mean() -> None:
    """k1 of a reference at 0 is the plain masked mean."""

    def mean(values: list[float], mask: list[int]) -> torch.Tensor:
        row = torch.tensor([values])
        return approx_kl(row, torch.zeros_like(row), torch.tensor([mask]).bool(), "k1")

    separates("mean_over_padded_width", mean([2, 4, 0, 0], [1, 1, 0, 0]), 3.0, 1.5)
    separates("masked_sum_divides_by_count", mean([2, 4], [1, 1]), 3.0, 6.0)  # a mean is asked
    separates("normalise_twice", mean([2, 4], [1, 1]), 3.0, 1.5)
    separates("nan_survives_mask", mean([2, math.nan], [1, 0]), 2.0, math.nan)
    separates("empty_mask_zero_division", mean([2, 4], [0, 0]), 0.0, math.nan)
    for wrong in (0.4 / 3, 9.4 / 3):
        separates("masked_value_discarded", mean([0.2, 0.2, 9], [1, 1, 0]), 0.2, wrong)
