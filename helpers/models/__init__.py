"""Hardware, profiles, loading, log-probabilities, sampling and reward models."""
