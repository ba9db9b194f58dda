"""Trainers: SFT, reward model, preference optimisation and online reinforcement learning."""
