"""Lesson 00 from its text: both notebooks, filled and unfilled."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson00(LessonTests):
    number = "00"
