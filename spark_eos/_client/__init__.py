"""Client settings, security, connections and error codes; hides kafka-python's import warnings."""

import warnings

with warnings.catch_warnings():
    # kafka-python uses functions of importlib.resources that Python 3.11 and 3.12 deprecate, but
    # later versions don't. A user's tests may run with -W error or show every warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401
