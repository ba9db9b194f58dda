"""The course itself: the main job, submissions, grading, reports and plots."""
