"""Checks of option values; each error names the option and its valid values."""

import ipaddress
from typing import Any, Final

from spark_eos._client.header_values import topic_name
from spark_eos.errors import ConfigurationError

# Kafka sets no limit, but the group's name is repeated in each of its transactional ids.
_MAX_LENGTH: Final = 1_000
# Options whose values aren't names in Kafka, so ACLs don't apply to them.
_NOT_IN_ACLS: Final = ("checkpoint_location",)


def check_text(name: str, text: object) -> None:
    """Check a text option, usually a group's name or a prefix."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{name} must be a non-empty string, not {text!r}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigurationError(f"{name}={text!r} is not UTF-8")
    if len(text) > _MAX_LENGTH and name != "checkpoint_location":
        raise ConfigurationError(f"{name} is longer than {_MAX_LENGTH} characters")
    if "*" in text and name not in _NOT_IN_ACLS:
        raise ConfigurationError(
            f"{name}={text!r} contains a *, which in an ACL means all names (KIP-290)"
        )


def check_topic(name: str, text: Any) -> None:
    """Check a topic's name against Kafka's own rule."""
    check_text(name, text)
    if topic_name(text) is None:
        raise ConfigurationError(
            f"{name}={text!r} is not a valid topic name: use at most 249 letters, digits, '.', '_' "
            "and '-'"
        )


def check_prefix(name: str, text: Any) -> None:
    """Check a prefix for transactional ids."""
    check_text(name, text)
    if "/" in text:
        raise ConfigurationError(
            f"{name}={text!r} contains a /, which separates prefix, group, host and slot in "
            "transactional ids: the ACLs and the fencing of two queries could overlap"
        )
    # Open transactions are found with a regular expression; ASCII ids keep it simple.
    if not (text.isascii() and text.isprintable()):
        raise ConfigurationError(f"{name}={text!r} must be printable ASCII")


def check_positive(**options: object) -> None:
    for name, value in options.items():
        # No comparison is true of NaN.
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ConfigurationError(f"{name} must be a number above 0, not {value!r}")


def check_count(name: str, value: int, least: int, most: int) -> None:
    if value < least:
        raise ConfigurationError(f"{name} must be an integer of at least {least}, not {value}")
    if value > most:
        raise ConfigurationError(f"{name} must be at most {most}, not {value}")


def is_loopback(host: str) -> bool:
    """Return True if a host name or address always refers to this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
