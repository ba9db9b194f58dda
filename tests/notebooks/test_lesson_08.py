"""Lesson 08 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson08(LessonTests):
    number = "08"
