"""Lesson 01 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson01(LessonTests):
    number = "01"
