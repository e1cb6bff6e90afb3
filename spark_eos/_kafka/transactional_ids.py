"""Transactional ids, ``<prefix>/<group>/<node>-<inode>/<slot>``: one per process and query."""

import re
from urllib.parse import quote


def id_stem(prefix: str, group_id: str) -> str:
    """Return the start of a query's ids; the group is percent-encoded, so it has no slash."""
    return f"{prefix}/{quote(group_id, safe='')}"


def id_prefix(prefix: str, group_id: str) -> str:
    """Return the prefix for an ACL that covers exactly a query's transactional ids (KIP-290)."""
    return f"{id_stem(prefix, group_id)}/"


def id_prefix_of(transactional_id: str) -> str:
    """Return the `id_prefix` of the query that a transactional id belongs to."""
    return re.sub(r"/(driver|[^/]+/[0-9]+)$", "/", transactional_id)


def id_pattern(prefix: str, group_id: str) -> str:
    """Return a regular expression (RE2) that matches exactly the ids of the query's workers."""
    stem = re.sub(r"([^A-Za-z0-9_/-])", r"\\\1", id_stem(prefix, group_id))
    return f"^{stem}/[^/]+/[0-9]+$"


def driver_id(prefix: str, group_id: str) -> str:
    """Return the id with which the driver checks the transaction settings; it never writes."""
    return f"{id_stem(prefix, group_id)}/driver"
