"""Turns flat options, which tests use, into the sink's arguments."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.options import FLAT, GROUPS, grouped


def flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which value objects are replaced by their fields, for JSON."""
    found: dict[str, Any] = {}
    names = {(one.argument, one.field): one.name for one in FLAT.values()}
    for name, value in options.items():
        if type(value) is GROUPS.get(name):
            fields = vars(value)
            found |= {names[name, field]: fields[field] for field in fields}
        else:
            found[name] = value
    return found


def arguments(**options: Any) -> dict[str, Any]:
    """Arguments of ExactlyOnceSink, from grouped and flat options."""
    return grouped(flat(options))


def changed(settings: WriterSettings, **options: Any) -> WriterSettings:
    """Settings with some fields and flat options replaced."""
    grouped_ones = {
        "transactions": settings.transactions,
        "limits": settings.limits,
        **options,
    }
    found = arguments(**grouped_ones)
    if "dead_letters" in found and not isinstance(found["dead_letters"], DeadLetterSettings):
        found["dead_letters"] = DeadLetterSettings.of(found["dead_letters"])
    return dataclasses.replace(settings, **found)
