"""Plumbing of the alignment course: data, models, trainers, judges, grading. It never holds an answer."""
