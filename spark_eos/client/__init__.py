"""Client settings, security, connections and error codes.

Imports kafka-python, quietly: its own imports warn on Python 3.11 and 3.12, and it logs every
connection at level INFO.
"""

import logging
import warnings

with warnings.catch_warnings():
    # Of importlib.resources, which has kept what it deprecated. A user's tests may run with -W
    # error, or show every warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401

_log = logging.getLogger("kafka")
# Without a handler, Python would print warnings itself.
_log.addHandler(logging.NullHandler())
if _log.level == logging.NOTSET:
    # What a failed connection means for a query, our errors and logs say. Whoever wants more sets
    # a level, before or after.
    _log.setLevel(logging.CRITICAL)
