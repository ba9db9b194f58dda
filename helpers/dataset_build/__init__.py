"""A preference data set from conversations: filtered prompts, candidates, verdicts, pairs, splits, a card."""
