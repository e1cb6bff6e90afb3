"""All exceptions that the package defines."""

import importlib
import pkgutil
from collections.abc import Iterator

import spark_eos


def own_errors() -> Iterator[type[BaseException]]:
    """Each of them, once."""
    for module in pkgutil.walk_packages(spark_eos.__path__, "spark_eos."):
        if not module.name.endswith("__main__"):
            for found in vars(importlib.import_module(module.name)).values():
                own = isinstance(found, type) and issubclass(found, Exception)
                if own and found.__module__ == module.name:
                    yield found
