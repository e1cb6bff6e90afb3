"""All exceptions that the package defines, and their texts."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import spark_eos


def own_errors() -> Iterator[type[BaseException]]:
    """Every exception class, once."""
    for module in pkgutil.walk_packages(spark_eos.__path__, "spark_eos."):
        if not module.name.endswith("__main__"):
            for found in vars(importlib.import_module(module.name)).values():
                own = isinstance(found, type) and issubclass(found, Exception)
                if own and found.__module__ == module.name:
                    yield found


def without_address(shown: str) -> str:
    """An error as shown by a command or a log, without the command that explains it."""
    return re.sub(r" \[more: spark-eos explain EOS\d\d\]", "", shown)
