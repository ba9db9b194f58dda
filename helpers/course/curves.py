"""Which training curves matter for which algorithm, and what a healthy one looks like."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

LN2 = math.log(2.0)
TRAIN_PREFIXES = ("", "train_", "train/")
EVAL_PREFIXES = ("eval_", "eval/", "dev_", "dev/", "val_", "val/")


@dataclass(frozen=True)
class Line:
    """One line of a panel: the first of `names` (any case, any prefix of its kind) that metrics.csv has."""

    names: tuple[str, ...]
    label: str
    is_evaluation: bool = False

    def column_in(self, columns: Iterable[str]) -> str | None:
        """Return the column of metrics.csv that holds this line, or None."""
        present = {column.lower(): column for column in columns}
        for name in self.names:
            for prefix in EVAL_PREFIXES if self.is_evaluation else TRAIN_PREFIXES:
                if prefix + name in present:
                    return present[prefix + name]
        return None


@dataclass(frozen=True)
class Panel:
    """One figure: its lines, a title that says what to see, and dashed reference lines (value, label)."""

    key: str
    name: str
    title: str
    ylabel: str
    lines: tuple[Line, ...]
    references: tuple[tuple[float, str], ...] = ()
    from_zero: bool = False
    optional: bool = False  # without its columns it is left out silently


def _both(*names: str) -> tuple[Line, ...]:
    return Line(names, "training"), Line(names, "held out", is_evaluation=True)


LOSS = _both("loss")
ACCURACY = _both("pair_accuracy", "accuracy", "reward_accuracy", "implicit_accuracy", "rewards/accuracies")
MARGIN = _both("reward_margin", "margin", "margin_mean", "implicit_margin", "rewards/margins")

SFT = (
    Panel("loss", "SFT loss", "SFT loss: should fall, the held-out curve too", "nats a token", LOSS),
    Panel(
        "perplexity",
        "Perplexity",
        "Perplexity: held-out should fall and then level off; a rise is overfitting",
        "perplexity",
        _both("perplexity", "ppl"),
    ),
)
REWARD_MODEL = (
    Panel(
        "loss",
        "Reward model loss",
        "Reward model loss: starts near ln 2, should fall below it",
        "−log σ(r⁺ − r⁻)",
        LOSS,
        ((LN2, "ln 2 ≈ 0.693: no preference"),),
    ),
    Panel(
        "pair_accuracy",
        "Pair accuracy",
        "Pair accuracy: should leave chance behind; training far above held-out is overfitting",
        "share of pairs ranked right",
        ACCURACY,
        ((0.5, "0.5: chance"),),
    ),
)
PREFERENCE = (
    Panel("loss", "Loss", "{} loss: should fall from its start value", "loss", LOSS),
    Panel(
        "pair_accuracy",
        "Implicit pair accuracy",
        "{} implicit reward: should rank more and more pairs right",
        "share of pairs ranked right",
        ACCURACY,
        ((0.5, "0.5: chance"),),
    ),
    Panel(
        "margin",
        "Implicit reward margin",
        "{} margin: chosen should pull ahead of rejected",
        "β · (chosen − rejected log-ratio)",
        MARGIN,
        ((0.0, "0: the reference"),),
    ),
    Panel(
        "rewards",
        "Implicit rewards",
        "{} implicit rewards: both may fall, rejected should fall further",
        "β · log-ratio to the reference",
        (
            Line(("reward_chosen", "chosen_reward", "rewards/chosen"), "chosen"),
            Line(("reward_rejected", "rejected_reward", "rewards/rejected"), "rejected"),
        ),
        ((0.0, "0: the reference"),),
    ),
)
ONLINE = (
    Panel(
        "reward",
        "Reward",
        "{} reward: should rise at a small KL",
        "reward of sampled answers",
        _both("reward", "reward_mean", "mean_reward", "score", "score_mean"),
    ),
    Panel(
        "gold",
        "Gold score",
        "{} gold score: if it falls while the reward rises, the reward is being hacked",
        "gold judge, 0 to 1",
        _both("gold", "gold_reward", "gold_mean", "gold_score", "gold_total"),
        optional=True,
    ),
    Panel(
        "kl",
        "KL",
        "{} KL to the reference: should grow slowly and stay small",
        "nats a response token",
        (Line(("kl", "kl_mean", "approx_kl", "ref_kl", "kl_to_reference"), "training"),),
        from_zero=True,
    ),
    Panel(
        "entropy",
        "Entropy",
        "{} entropy: must not collapse to 0",
        "nats a token",
        (Line(("entropy", "entropy_mean", "policy_entropy"), "training"),),
        from_zero=True,
    ),
    Panel(
        "length",
        "Answer length",
        "{} length: a sudden climb is length hacking, a fall to 1 is giving up",
        "tokens an answer",
        _both("tokens", "length", "mean_length", "mean_tokens", "response_length", "response_tokens"),
        from_zero=True,
    ),
    Panel(
        "clip_fraction",
        "Clip fraction",
        "{} clip fraction: a few per cent is normal",
        "share clipped",
        (Line(("clip_fraction", "clip_frac", "clipfrac", "clipped", "clip_share"), "training"),),
        from_zero=True,
    ),
)
VALUE = (
    Panel(
        "value_loss",
        "Value loss",
        "{} value loss: should fall, then follow the rewards' noise",
        "half a squared reward",
        (Line(("value_loss",), "training"),),
        from_zero=True,
        optional=True,
    ),
    Panel(
        "explained_variance",
        "Explained variance",
        "{} value: its share of the returns' variance should leave 0; below it a constant would do better",
        "1 − Var(return − value) / Var(return)",
        (Line(("explained_variance",), "training"),),
        ((0.0, "0: a constant"),),
        optional=True,
    ),
)
NAMES = {
    "dpo": "DPO",
    "ipo": "IPO",
    "aot": "AOT",
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "gspo": "GSPO",
    "ppo": "PPO",
}


def panels_of(algo: str, *, beta: float | None = None, threshold: float | None = None) -> tuple[Panel, ...]:
    """Return the panels for an algorithm; an unknown one gets its loss and whatever online curves exist."""
    algo = algo.lower().replace("-", "_")
    if algo == "sft":
        return SFT
    if algo in ("reward_model", "reward"):
        goal = ((threshold, f"threshold {threshold:g}"),) if threshold is not None else ()
        return tuple(
            replace(panel, references=panel.references + goal) if panel.key == "pair_accuracy" else panel
            for panel in REWARD_MODEL
        )
    shown = NAMES.get(algo, algo)
    panels: tuple[Panel, ...] = PREFERENCE if algo in ("dpo", "ipo", "aot") else ONLINE
    panels += VALUE if algo == "ppo" else ()
    panels = tuple(replace(p, name=f"{shown} {_lower(p.name)}", title=p.title.format(shown)) for p in panels)
    return _with_start_value(panels, algo, beta)


def _with_start_value(panels: tuple[Panel, ...], algo: str, beta: float | None) -> tuple[Panel, ...]:
    """Mark the value a preference loss has before the first step, when policy and reference are equal."""
    if algo in ("dpo", "aot"):
        title, start = (
            f"{NAMES[algo]} loss: should fall from ln 2",
            (LN2, "ln 2 ≈ 0.693: the start"),
        )
    elif algo == "ipo" and beta:
        value = 1.0 / (2.0 * beta) ** 2
        title, start = (
            "IPO loss: starts at (1/(2β))², should fall below it",
            (value, f"(1/(2β))² = {value:.3g}"),
        )
    else:
        return panels
    return tuple(
        replace(panel, title=title, references=(start,)) if panel.key == "loss" else panel for panel in panels
    )


def _lower(name: str) -> str:
    return name if name.isupper() else name[0].lower() + name[1:]
