"""Lesson 13 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson13(LessonTests):
    number = "13"
