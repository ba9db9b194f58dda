"""Lesson 06 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson06(LessonTests):
    number = "06"
