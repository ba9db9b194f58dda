"""Lesson 05 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson05(LessonTests):
    number = "05"
