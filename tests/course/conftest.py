"""The public evaluation files of the tests of grading."""

from __future__ import annotations

from tests.course.grading import public

__all__ = ["public"]
