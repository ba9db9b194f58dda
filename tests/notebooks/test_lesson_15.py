"""Lesson 15 from its text. It has no blanks, so both notebooks are the same and run as they are."""

from tests.notebooks.lesson_tests import KIT, LessonTests, code_cells, notebook


class TestLesson15(LessonTests):
    number = "15"

    test_unfilled_it_stops_with_a_friendly_line_that_names_the_exercise = None  # there is no exercise

    def test_there_is_nothing_to_fill_in(self, lesson):
        student = code_cells(notebook(lesson, True))
        assert student == code_cells(notebook(lesson, False))
        assert not any(f"def {name}(" in str(student) for name in KIT.answers)
