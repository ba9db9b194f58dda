"""The chat demo: policies side by side, blind votes that become training pairs, a gallery of picked examples.

Only `page.py`, `looks.py` and `serve.py` know Gradio, and import it when they are called; the rest runs and
is tested without it.
"""
