"""Checks of the sink's options; each names the option and what it must be."""

from typing import Final

from spark_eos.errors import ConfigurationError

_LONGEST: Final = 200
# Texts that are no names of Kafka's.
_NO_ACL: Final = ("checkpoint_location",)


def check_text(name: str, text: object) -> None:
    """Refuses what is no text, is empty, or is too long for a Kafka name.

    Raises:
        ConfigurationError: As said.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{name} must be a text that is not empty, not {text!r}")
    if len(text) > _LONGEST and name != "checkpoint_location":
        raise ConfigurationError(f"{name} is longer than {_LONGEST} characters")
    if "*" in text and name not in _NO_ACL:
        raise ConfigurationError(
            f"{name}={text!r} has a *, which in an ACL stands for all names (KIP-290)"
        )
    if name == "transactional_id_prefix" and "/" in text:
        raise ConfigurationError(
            f"{name}={text!r} has a /, by which ids are divided into prefix, group, host and "
            "slot: ACLs and fencing of prefix 'a' and group 'b/c' would be those of others"
        )
    # Transactional ids are looked up by a regular expression, for which this keeps them plain.
    if name == "transactional_id_prefix" and not (text.isascii() and text.isprintable()):
        raise ConfigurationError(f"{name}={text!r} must be printable ASCII")


def check_positive(**options: object) -> None:
    """Refuses what is no number above 0.

    Raises:
        ConfigurationError: As said.
    """
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigurationError(f"{name} must be a number above 0, not {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuses what is neither True nor False.

    Raises:
        ConfigurationError: As said.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, not {value!r}")
