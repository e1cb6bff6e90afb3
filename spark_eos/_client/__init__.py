"""Client settings, security, connections and error codes; imports kafka-python quietly."""

import warnings

with warnings.catch_warnings():
    # Of importlib.resources on Python 3.11 and 3.12, which has kept what it deprecated. A user's
    # tests may run with -W error, or show every warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401
