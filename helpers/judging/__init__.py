"""Judges and head-to-head evaluation."""
