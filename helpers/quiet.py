"""Keep the libraries' own chatter out of a learner's terminal; the course says what matters itself."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_libraries() -> None:
    """Silence notices and loading bars of tokenizers, bitsandbytes and transformers. Errors still show."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"  # not the line that warned
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # tells of an optional package on import
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
