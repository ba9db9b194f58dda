"""Known wrong answers, each with the one sentence that a good teacher would say to it."""

from solutions.mistakes import (
    advantages,
    credit,
    evaluation,
    hacking,
    kl,
    logprobs,
    margins,
    normalisation,
    ppo,
    preference,
    qlora,
    reward,
    sequence,
    sft,
    surrogate,
)
from solutions.mistakes.base import MISTAKES, Mistake, mistakes_of
from solutions.mistakes.not_here import NOT_HERE

__all__ = ["MISTAKES", "NOT_HERE", "Mistake", "mistakes_of"]

TOPICS = (
    logprobs,
    kl,
    credit,
    ppo,
    sft,
    reward,
    preference,
    margins,
    advantages,
    surrogate,
    normalisation,
    sequence,
    evaluation,
    hacking,
    qlora,
)
