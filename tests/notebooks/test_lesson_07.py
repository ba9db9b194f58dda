"""Lesson 07 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson07(LessonTests):
    number = "07"
