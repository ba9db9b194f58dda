"""Command line, demo and cloud entry points: the only room that names the default answers."""
