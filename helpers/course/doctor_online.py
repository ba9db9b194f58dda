"""The run doctor's rules for online training; see `doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from helpers.course.doctor_record import Finding, Record, note, warning

Rule = Callable[[Record], Iterable[Finding]]


def reward_trend(record: Record) -> Iterator[Finding]:
    """Whether the reward rises, in units of its spread."""
    reward, spread = record.curve("reward"), record.curve("reward_std")
    if not record.trends("reward"):
        return
    rise, unit = reward.last - reward.first, max(spread.first if spread else 0.0, 1e-9)
    numbers = {"first": reward.first, "last": reward.last, "spread": unit}
    words = f"the reward went from {reward.first:.3g} to {reward.last:.3g} (spread {unit:.2g})"
    if rise > 0.2 * unit:
        yield note("reward", f"{words}: it rises", **numbers)
    elif rise < -0.2 * unit:
        yield warning("reward", f"{words}: it falls; lower --learning_rate or raise --kl_coef", **numbers)
    else:
        yield warning("reward", f"{words}: it does not rise", **numbers)


def loss_near_zero(record: Record) -> Iterator[Finding]:
    """The loss of centred advantages is about 0 on-policy, and that is no sign of trouble."""
    loss = record.curve("loss")
    if loss and record.algo != "ppo" and max(map(abs, loss.values)) < 0.5:
        yield note(
            "loss near 0",
            f"the loss lies between {min(loss.values):.2g} and {max(loss.values):.2g}. That is normal:"
            " advantages of a group sum to zero, so on-policy the loss is about 0 while its gradient is not."
            " Read the reward and the KL instead",
            least=min(loss.values),
            most=max(loss.values),
        )


SMALL_KL = 1e-4
SMALL_RATIO = 1e-3


def does_not_move(record: Record) -> Iterator[Finding]:
    """A policy that is still its reference after many steps."""
    kl, most = record.curve("kl"), record.curve("ratio_max")
    if not record.trends("kl") or not most:
        return
    if kl.last < SMALL_KL and max(most.values) - 1 < SMALL_RATIO:
        yield warning(
            "learning rate",
            f"the KL is {kl.last:.1e} nats a token and no ratio went beyond {max(most.values):.5f}: at"
            f" learning rate {record.setting('learning_rate'):g} the policy does not move; raise it",
            kl=kl.last,
            ratio_max=max(most.values),
            learning_rate=record.setting("learning_rate"),
        )


FAR, NEAR = 0.5, 0.2  # nats a token
RUNAWAY = 3.0


def kl_runs_away(record: Record) -> Iterator[Finding]:
    """Drift from the reference: slow and small, or on its way out."""
    kl = record.curve("kl") or record.curve("kl_k1")
    if not record.trends("kl") and not record.trends("kl_k1"):
        return
    numbers = {"first": kl.first, "middle": kl.middle, "last": kl.last, "most": max(kl.values)}
    growing = kl.last > RUNAWAY * max(kl.middle, 1e-6) and kl.last > NEAR
    if kl.last > FAR or growing:
        yield warning(
            "KL",
            f"the KL to the reference ran from {kl.middle:.2g} to {kl.last:.2g} nats a token: the policy"
            " leaves the texts that the reward model knows; raise --kl_coef or lower --learning_rate",
            **numbers,
        )
    else:
        yield note("KL", f"the KL to the reference is {kl.last:.2g} nats a token, which is close", **numbers)


def negative_kl(record: Record) -> Iterator[Finding]:
    """k1 below zero is no mistake."""
    k1 = record.curve("kl_k1")
    if not k1 or min(k1.values) >= -1e-3:
        return
    cut = record.setting("top_p", 1.0) < 1 or record.setting("min_new_tokens", 0.0) > 0
    reason = (
        "top_p below 1 and min_new_tokens above 0 sample from another policy than the one that is scored"
        if cut
        else "it is an estimate from few tokens"
    )
    yield note(
        "negative KL",
        f"kl_k1 went down to {min(k1.values):.2g}: {reason}. k3, in the column kl, cannot be negative",
        least=min(k1.values),
    )


FLAT_GROUPS = 0.5


def flat_groups(record: Record) -> Iterator[Finding]:
    """Groups whose rewards are all equal teach nothing."""
    flat = record.curve("groups_without_variance")
    if not flat or record.algo == "ppo" or flat.last == 0:
        return
    say = warning if flat.last > FLAT_GROUPS else note
    advice = (
        "raise --temperature or --group_size, or take harder prompts" if say is warning else "some are normal"
    )
    yield say(
        "flat groups",
        f"in {flat.last:.0%} of the groups all rewards were equal (at first {flat.first:.0%}): their"
        f" advantages are 0 and teach nothing; {advice}",
        first=flat.first,
        last=flat.last,
    )


LONGER, SHORTER = 1.5, 0.4


def length_creep(record: Record) -> Iterator[Finding]:
    """Answers that grow, or shrink to nothing."""
    tokens = record.curve("tokens")
    if not record.trends("tokens"):
        return
    ratio = tokens.last / max(tokens.first, 1e-9)
    numbers = {"first": tokens.first, "last": tokens.last, "ratio": ratio}
    words = f"answers went from {tokens.first:.1f} to {tokens.last:.1f} tokens"
    if ratio > LONGER:
        yield warning(
            "length creep",
            f"{words}: does the reward model like length? Compare the win rate, length-controlled;"
            " dr_grpo takes away the loss's own liking",
            **numbers,
        )
    elif ratio < SHORTER:
        yield warning("giving up", f"{words}: it may have found that saying little is safe", **numbers)
    else:
        yield note("length", f"{words}, which is steady", **numbers)


COLLAPSED = 0.25


def entropy_collapse(record: Record) -> Iterator[Finding]:
    """A policy that always says the same has nothing left to compare."""
    entropy = record.curve("entropy")
    if not record.trends("entropy"):
        return
    numbers = {"first": entropy.first, "last": entropy.last}
    words = f"the entropy went from {entropy.first:.2g} to {entropy.last:.2g} nats a token"
    if entropy.last < COLLAPSED * entropy.first:
        yield warning(
            "entropy collapse",
            f"{words}: samples hardly differ any more; raise --kl_coef, or lower --learning_rate",
            **numbers,
        )
    else:
        yield note("entropy", words, **numbers)


CUT_OFF = 0.3


def cut_off(record: Record) -> Iterator[Finding]:
    """Answers that hit the token limit."""
    share = record.curve("truncated")
    if share and share.last > CUT_OFF:
        yield warning(
            "cut off",
            f"{share.last:.0%} of the answers were cut off at {record.setting('max_new_tokens'):.0f} tokens,"
            " and their rewards are of half a text: raise --max_new_tokens, or leave them out with"
            " --mask_truncated true",
            truncated=share.last,
            max_new_tokens=record.setting("max_new_tokens"),
        )


CLIPPED = 0.3


def clipping(record: Record) -> Iterator[Finding]:
    """Too much of the batch clipped, or a clip that is never felt."""
    share, most = record.curve("clip_fraction"), record.curve("ratio_max")
    if not share or not most:
        return
    numbers = {
        "clip_fraction": share.last,
        "ratio_max": max(most.values),
        "clip_eps": record.setting("clip_eps"),
    }
    if share.last > CLIPPED:
        yield warning(
            "clipping",
            f"{share.last:.0%} of the ratios were clipped and taught nothing: fewer passes over a rollout"
            " (--num_epochs), or a lower --learning_rate",
            **numbers,
        )
    elif record.algo == "gspo" and max(share.values) == 0 and max(most.values) - 1 > SMALL_RATIO:
        yield note(
            "clipping",
            f"no response was ever clipped at {record.setting('clip_eps'):g}: the mean over a response keeps"
            f" its ratio near 1 (at most {max(most.values):.4f} here); GSPO's paper clips at 3e-4 and 4e-4",
            **numbers,
        )


def first_ratio(record: Record) -> Iterator[Finding]:
    """Old and new log-probs must come from the same computation."""
    error = record.curve("first_ratio_error")
    if error and max(error.values) > 1e-3:
        yield warning(
            "first ratio",
            f"the first ratio of a step was up to {max(error.values):.2g} off 1: old and new log-probs differ"
            " before any update (dropout, another precision, or another temperature)",
            error=max(error.values),
        )


def abstained(record: Record) -> Iterator[Finding]:
    """Responses without a finite reward."""
    count = record.curve("abstained")
    if count and sum(count.values) > 0:
        yield warning(
            "no reward",
            f"{sum(count.values):.0f} responses had no finite reward and abstained: look at what the reward"
            " model made of them",
            abstained=sum(count.values),
        )


def explained_variance(record: Record) -> Iterator[Finding]:
    """How much of the returns the value foretells."""
    curve = record.curve("explained_variance")
    if not record.trends("explained_variance"):
        return
    if curve.last < 0:
        yield warning(
            "value",
            f"explained variance is {curve.last:.2f}, below 0: the value foretells returns worse than their"
            " mean would; raise --value_learning_rate, or let it warm up",
            explained_variance=curve.last,
        )
    else:
        yield note(
            "value",
            f"explained variance is {curve.last:.2f} (1: perfect, 0: no better than a constant)",
            explained_variance=curve.last,
        )


ONLINE: tuple[Rule, ...] = (
    reward_trend,
    loss_near_zero,
    does_not_move,
    kl_runs_away,
    negative_kl,
    flat_groups,
    length_creep,
    entropy_collapse,
    cut_off,
    clipping,
    first_ratio,
    abstained,
    explained_variance,
)
