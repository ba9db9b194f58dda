"""Lesson 12 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson12(LessonTests):
    number = "12"
