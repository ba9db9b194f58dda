"""Lesson 14 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson14(LessonTests):
    number = "14"
