"""The bundled pocket world: its prompts, corpus, base model and simulated annotators."""
