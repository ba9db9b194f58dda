"""Lesson 03 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson03(LessonTests):
    number = "03"
