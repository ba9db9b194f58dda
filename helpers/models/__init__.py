"""Hardware, profiles, loading, log-probabilities, sampling and reward models."""

import logging

# On some CPUs bitsandbytes warns, when it is imported, that an optional download of kernels is missing.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
