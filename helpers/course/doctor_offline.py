"""The run doctor's rules for every run, and for training on a fixed data set; see `doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from helpers.course.curves import LN2
from helpers.course.doctor_record import SHORT, Finding, Record, note, warning

Rule = Callable[[Record], Iterable[Finding]]


# ---------------------------------------------------------------------- every run
def not_finite(record: Record) -> Iterator[Finding]:
    """NaN or infinity in loss or gradient."""
    for column in ("loss", "grad_norm"):
        steps = record.not_finite(column)
        if steps:
            yield warning(
                "not finite",
                f"{column} was NaN or infinite at {len(steps)} logged steps, first at {steps[0]}:"
                " lower --learning_rate, or look for empty rows and fp16 overflow",
                steps=len(steps),
                first=steps[0],
            )


SKIPPED_SHARE = 0.05


def skipped(record: Record) -> Iterator[Finding]:
    """Updates that were not made."""
    curve = record.curve("skipped_steps")
    count = curve.values[-1] if curve else 0
    if count:
        share = count / max(curve.steps[-1], 1)
        say = warning if share > SKIPPED_SHARE else note
        yield say(
            "skipped steps",
            f"{count:.0f} updates were skipped by step {curve.steps[-1]}: their loss or gradient was not"
            " finite, or there was nothing to learn from. A few under fp16 are normal, many are not",
            skipped=count,
            share=share,
        )


CLIPPED_OFTEN = 20.0


def gradient_norm(record: Record) -> Iterator[Finding]:
    """A gradient far above the limit it is clipped to."""
    curve, limit = record.curve("grad_norm"), record.setting("max_grad_norm")
    if curve and curve.last > CLIPPED_OFTEN * limit and record.algo != "ipo":  # IPO's scale is its target's
        yield note(
            "gradient norm",
            f"gradients of norm {curve.last:.3g} are clipped to {limit:g} in every step, so their direction"
            " alone counts; Adam hardly minds",
            grad_norm=curve.last,
            max_grad_norm=limit,
        )


COMMON: tuple[Rule, ...] = (not_finite, skipped, gradient_norm)


# ---------------------------------------------------------------------- offline
START_TOLERANCE = 0.02  # relative; batches of the first logged row are already a few steps of warm-up in


def expected_start(record: Record) -> tuple[float, str]:
    """The loss of a policy that is its reference, and how it is written."""
    if record.algo == "ipo":
        return (0.5 / record.setting("beta")) ** 2, "(1/(2 beta))^2"
    return LN2, "ln 2"


def start_value(record: Record) -> Iterator[Finding]:
    """Before the first update policy and reference agree."""
    loss = record.curve("loss")
    expected, words = expected_start(record)
    if not loss or loss.steps[0] != 1:
        return
    first = loss.values[0]
    if abs(first - expected) <= START_TOLERANCE * expected:
        yield note(
            "start",
            f"the first loss is {first:.4g}, {words} as it must be: policy and reference start equal",
            first_loss=first,
            expected=expected,
        )
    elif not record.setting("label_smoothing", 0.0):
        yield warning(
            "start",
            f"the first loss is {first:.4g} where a policy equal to its reference gives {words} ="
            f" {expected:.4g}: is the reference another model, or does the loss miss a term?",
            first_loss=first,
            expected=expected,
        )


STUCK = 0.03  # the loss has come down by less than this share of where it began


def plateau(record: Record) -> Iterator[Finding]:
    """A loss that never left its start, and why."""
    loss, margin = record.curve("loss"), record.curve("margin")
    if not record.trends("loss"):
        return
    expected, words = expected_start(record)
    if loss.last <= (1 - STUCK) * expected:
        yield note(
            "loss",
            f"the loss came down from {loss.first:.4g} to {loss.last:.4g} (start: {words} = {expected:.4g})",
            first=loss.first,
            last=loss.last,
        )
        return
    moved = abs(margin.last) if margin else 0.0
    rate = record.setting("learning_rate")
    if moved < 0.05:
        reason = (
            f"the margin is {moved:.2g}, so the policy has hardly moved: learning rate {rate:g} is too small,"
            " or there were too few steps"
        )
    else:
        reason = (
            f"the margin is {margin.last:.2g}, so the policy moves without learning to rank: are chosen and"
            " rejected mixed up, or are the labels noise?"
        )
    yield warning(
        "plateau",
        f"the loss is {loss.last:.4g} and began at {words} = {expected:.4g}, the value of a policy that has"
        f" no opinion; {reason}",
        loss=loss.last,
        expected=expected,
        margin=moved,
        learning_rate=rate,
    )


def starts_at_ln_2(record: Record) -> Iterator[Finding]:
    """A reward model that cannot tell chosen from rejected yet."""
    loss = record.curve("loss")
    if record.trends("loss") and loss.last > (1 - STUCK) * LN2:
        yield warning(
            "plateau",
            f"the loss is {loss.last:.4g}; ln 2 = 0.693 is a reward model without an opinion:"
            f" learning rate {record.setting('learning_rate'):g} may be too small",
            loss=loss.last,
            expected=LN2,
        )


CHANCE = 0.55


def ranking(record: Record) -> Iterator[Finding]:
    """How many pairs are ranked right, in training and held out."""
    name = "pair_accuracy" if record.algo == "reward_model" else "accuracy"
    train, held_out = record.curve("accuracy"), record.curve(f"eval_{name}")
    if not held_out or record.steps < SHORT:
        return
    last = held_out.values[-1]
    seen = train.last if train else last
    if last < CHANCE:
        yield warning(
            "held-out pairs",
            f"{last:.2f} of the held-out pairs are ranked right, which is chance (training: {seen:.2f})",
            held_out=last,
            training=seen,
        )
    elif seen - last > 0.15:
        yield warning(
            "held-out pairs",
            f"{seen:.2f} of the training pairs are ranked right and {last:.2f} of the held-out ones:"
            " it learns them by heart; fewer epochs, or a smaller adapter",
            held_out=last,
            training=seen,
        )
    else:
        yield note(
            "held-out pairs",
            f"{last:.2f} of the held-out pairs are ranked right (training: {seen:.2f})",
            held_out=last,
            training=seen,
        )


def falling_rewards(record: Record) -> Iterator[Finding]:
    """The chosen answers become less likely too: usual, up to a point."""
    chosen, rejected = record.curve("reward_chosen"), record.curve("reward_rejected")
    if not record.trends("reward_chosen") or chosen.last >= 0:
        return
    say = warning if chosen.last < 0.7 * rejected.last else note
    advice = (
        "nearly as far as the rejected ones: a larger beta, or fewer steps, holds the policy closer"
        if say is warning
        else "which is usual: only the difference is trained, and the rejected ones fall further"
    )
    yield say(
        "chosen answers",
        f"implicit rewards are {chosen.last:.2g} chosen and {rejected.last:.2g} rejected: the chosen answers"
        f" become less likely too, {advice}",
        chosen=chosen.last,
        rejected=rejected.last,
    )


LOST = 8.0  # nats of a whole response


def forgotten(record: Record) -> Iterator[Finding]:
    """Chosen answers far less likely than at first: texts come apart while the loss looks fine."""
    curve = record.curve("logp_chosen")
    if not record.trends("logp_chosen"):
        return
    begin, end = curve.values[0], curve.last
    if begin - end > LOST and end < 2 * begin:
        yield warning(
            "falling apart",
            f"the log-probability of chosen answers went from {begin:.1f} to {end:.1f}: the policy now writes"
            " neither answer, whatever the loss says; raise beta, lower --learning_rate, or stop earlier, and"
            " read samples.jsonl",
            first=begin,
            last=end,
        )


RISE = 0.1


def overfitting(record: Record) -> Iterator[Finding]:
    """A held-out loss that has turned up again."""
    column = "eval_perplexity" if record.algo == "sft" else "eval_loss"
    curve = record.curve(column)
    if len(curve) < 3:
        return
    best = min(curve.values)
    step = curve.steps[curve.values.index(best)]
    if curve.values[-1] > (1 + RISE) * best:
        yield warning(
            "overfitting",
            f"{column} was {best:.4g} at step {step} and is {curve.values[-1]:.4g} now:"
            " stop there, with --max_steps or fewer epochs",
            best=best,
            best_step=step,
            last=curve.values[-1],
        )


REWARD_MODEL: tuple[Rule, ...] = (starts_at_ln_2, ranking, overfitting)
PREFERENCE: tuple[Rule, ...] = (start_value, plateau, ranking, falling_rewards, forgotten, overfitting)
