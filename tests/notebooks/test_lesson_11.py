"""Lesson 11 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson11(LessonTests):
    number = "11"
