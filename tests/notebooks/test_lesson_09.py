"""Lesson 09 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson09(LessonTests):
    number = "09"
