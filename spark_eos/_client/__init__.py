"""Client settings, security, connections and error codes; hides kafka-python's import warnings."""

import warnings

with warnings.catch_warnings():
    # On Python 3.11 and 3.12, kafka-python uses functions of importlib.resources that were
    # deprecated there, and later kept. A user's tests may run with -W error or show every warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401
