"""Lesson 10 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson10(LessonTests):
    number = "10"
