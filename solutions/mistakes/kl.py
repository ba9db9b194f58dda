"""What goes wrong in approx_kl and token_entropy."""

import torch

from solutions.mistakes.base import mistake
from solutions.mistakes.parts import difference


def estimate(d, estimator):
    """The right estimate of each token."""
    return {"k1": d, "k2": d.square() / 2, "k3": (-d).exp() - 1 + d}[estimator]


def mean_of(x, mask):
    """The right mean."""
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def with_estimates(**wrong):
    """approx_kl with some estimators replaced."""

    def approx_kl(logprobs, ref_logprobs, mask, estimator="k3"):
        d = difference(logprobs, ref_logprobs, mask)
        return mean_of(wrong[estimator](d) if estimator in wrong else estimate(d, estimator), mask)

    return approx_kl


def with_mean(reduce):
    """approx_kl with another mean."""

    def approx_kl(logprobs, ref_logprobs, mask, estimator="k3"):
        return reduce(estimate(difference(logprobs, ref_logprobs, mask), estimator), mask)

    return approx_kl


def kl(name, hint):
    """A mistake of approx_kl."""
    return mistake("approx_kl", name, hint)


kl("kl_k3_missing_term", "The linear term of k3 is missing: exp(-d) - 1 alone can be negative.")(
    with_estimates(k3=lambda d: (-d).exp() - 1)
)
kl("kl_k3_missing_term", "The -1 of k3 is missing. KL of a policy with itself is zero; check that first.")(
    with_estimates(k3=lambda d: (-d).exp() + d)
)
kl("kl_direction", "The sign of d is wrong in k3: with d = logprobs - ref_logprobs it is exp(-d) - 1 + d.")(
    with_estimates(k3=lambda d: d.exp() - 1 - d)
)
kl("kl_k1_sign", "k1 has the wrong sign: it is log pi - log ref.")(with_estimates(k1=lambda d: -d))
kl("kl_k1_absolute", "k1 keeps its sign: single tokens may be negative, and their mean is unbiased.")(
    with_estimates(k1=torch.abs)
)
kl("kl_k2_not_halved", "k2 is half the square of the log-ratio.")(with_estimates(k2=torch.square))
kl("kl_k3_is_k2", "k3 gives k2 here: exp(-d) - 1 + d is asked.")(with_estimates(k3=lambda d: d.square() / 2))
kl("kl_estimator_ignored", "The estimator is ignored: every name gives k3.")(
    with_estimates(k1=lambda d: (-d).exp() - 1 + d, k2=lambda d: (-d).exp() - 1 + d)
)
kl("kl_estimator_ignored", "The estimator is ignored: every name gives k1.")(
    with_estimates(k2=lambda d: d, k3=lambda d: d)
)
kl(
    "kl_row_sum_then_batch_mean",
    "Tokens are summed within a row, rows averaged. A mean over tokens may not grow with the length.",
)(with_mean(lambda x, m: torch.where(m, x, 0.0).sum(dim=1).mean()))
kl(
    "accum_mean_of_means",
    "Rows are averaged first, so short ones weigh more. Divide by all tokens of the batch.",
)(with_mean(lambda x, m: (torch.where(m, x, 0.0).sum(dim=1) / m.sum(dim=1).clamp(min=1)).mean()))
kl(
    "kl_mean_outside_mask",
    "The mean is over all positions. Padding has no KL: divide by the number of tokens.",
)(with_mean(lambda x, m: torch.where(m, x, 0.0).mean()))
kl("kl_sum", "The tokens are added up. Divide by their number.")(
    with_mean(lambda x, m: torch.where(m, x, 0.0).sum())
)
kl("empty_mask_zero_division", "Without tokens this is 0/0. No token, no divergence: 0.")(
    with_mean(lambda x, m: torch.where(m, x, 0.0).sum() / m.sum())
)
kl("bt_not_reduced", "One number a token comes back. Finish with the mean over the masked tokens.")(
    with_mean(lambda x, m: torch.where(m, x, 0.0))
)
kl(
    "logprob_under_no_grad",
    "The estimate carries no gradient, which k2 and k3 need when they are part of a loss.",
)(with_mean(lambda x, m: mean_of(x, m).detach()))


@kl("nan_survives_mask", "0 times NaN is NaN, so a mask that multiplies lets it through: use torch.where.")
def multiplied(logprobs, ref_logprobs, mask, estimator="k3"):
    each = estimate((logprobs - ref_logprobs).float(), estimator) * mask
    return each.sum() / mask.sum().clamp(min=1)


# ---------------------------------------------------------------- token_entropy
def entropy(name, hint):
    """A mistake of token_entropy."""
    return mistake("token_entropy", name, hint)


def terms(logits):
    """Probability and log-probability; 0 for what is impossible."""
    logp = logits.float().log_softmax(-1)
    return logp.exp(), logp.masked_fill(logp.isinf(), 0.0)


@entropy("entropy_sign", "The sign is wrong: entropy is never negative.")
def entropy_sign(logits):
    p, logp = terms(logits)
    return (p * logp).sum(-1)


@entropy(
    "entropy_minus_logp", "This is the surprise at the likeliest word. Entropy is a sum over the vocabulary."
)
def entropy_of_the_likeliest(logits):
    return -logits.float().log_softmax(-1).amax(-1)


@entropy(
    "entropy_exp_overflow", "exp of raw logits overflows: use log_softmax, or subtract the largest first."
)
def entropy_exp_overflow(logits):
    p = logits.float().exp() / logits.float().exp().sum(-1, keepdim=True)
    return -(p * p.log().masked_fill(p == 0, 0.0)).sum(-1)


@entropy(
    "entropy_zero_times_infinity",
    "A word of probability 0 gives 0 times minus infinity, NaN. It adds nothing.",
)
def entropy_zero_times_infinity(logits):
    logp = logits.float().log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


@entropy(
    "entropy_wrong_axis_or_precedence", "The sum runs over time. Sum over the vocabulary, the last axis."
)
def entropy_over_time(logits):
    p, logp = terms(logits)
    return -(p * logp).sum(1)


@entropy("entropy_wrong_axis_or_precedence", "The sum hits one factor only: bracket the product.")
def entropy_precedence(logits):
    p, logp = terms(logits)
    return -p * logp.sum(-1, keepdim=True)


@entropy(
    "logsoftmax_wrong_or_missing_dim", "Probabilities are normalised over another axis than the vocabulary."
)
def entropy_normalised_over_time(logits):
    logp = logits.float().log_softmax(1)
    return -(logp.exp() * logp.masked_fill(logp.isinf() | logp.isnan(), 0.0)).sum(-1)


@entropy("entropy_mean", "This is a mean over the vocabulary. Entropy is the sum.")
def entropy_mean(logits):
    p, logp = terms(logits)
    return -(p * logp).mean(-1)


@entropy("entropy_of_the_batch", "One number for the batch. Each position has its own entropy, (B, T).")
def entropy_of_the_batch(logits):
    p, logp = terms(logits)
    return -(p * logp).sum(-1).mean()


@entropy("entropy_base_two", "These are bits. The course counts in nats: the natural logarithm.")
def entropy_base_two(logits):
    p, logp = terms(logits)
    return -(p * logp).sum(-1) / 0.6931471805599453


@entropy("raw_logits_as_logprobs", "The logits are taken for log-probabilities: normalise them first.")
def entropy_of_raw_logits(logits):
    p, _ = terms(logits)
    return -(p * logits.float().masked_fill(logits.isinf(), 0.0)).sum(-1)


@entropy(
    "entropy_shifted", "The last position is missing. The logits of every position have an entropy, (B, T)."
)
def entropy_shifted(logits):
    p, logp = terms(logits)
    return -(p * logp).sum(-1)[:, :-1]


@entropy("logprob_under_no_grad", "The entropy carries no gradient, so a bonus on it would do nothing.")
def entropy_detached(logits):
    p, logp = terms(logits)
    return -(p * logp).sum(-1).detach()
