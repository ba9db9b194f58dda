"""Lesson 04 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson04(LessonTests):
    number = "04"
