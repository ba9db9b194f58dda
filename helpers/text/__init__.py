"""Data sets, chat encoding and the batch type: one prompt and its k responses."""
