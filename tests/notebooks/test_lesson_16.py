"""Lesson 16 from its text: both notebooks."""

from tests.notebooks.lesson_tests import LessonTests


class TestLesson16(LessonTests):
    number = "16"
