"""The one exception for foreseeable mistakes: its message is what the user reads, without a traceback."""


class CourseError(Exception):
    """A mistake a user can make and mend.

    The message names the file, row or flag, and says what to do. The command line prints it after
    ``error:`` and exits with status 2; a notebook shows it alone too.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [str(self)]
