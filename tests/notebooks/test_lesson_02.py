"""Lesson 02 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson02(LessonTests):
    number = "02"
