"""Client settings, security, connections and error codes.

Imports kafka-python, quietly: its own imports warn on Python 3.11 and 3.12.
"""

import warnings

with warnings.catch_warnings():
    # Of importlib.resources, which has kept what it deprecated. A user's tests may run with -W
    # error, or show every warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401
