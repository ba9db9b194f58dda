"""Known wrong answers, each with the one sentence that a good teacher would say to it."""

from solutions.mistakes import advantages, logprobs, normalisation, preference, reward, sft, surrogate
from solutions.mistakes.base import MISTAKES, Mistake, mistakes_of

__all__ = ["MISTAKES", "Mistake", "mistakes_of"]

TOPICS = (logprobs, sft, reward, preference, advantages, surrogate, normalisation)
