"""Locations of files: paths, and URIs that Hadoop and pyarrow know."""

import re
from typing import Final

# pyarrow has one scheme for what Hadoop calls s3, s3n and s3a.
_HADOOP_S3: Final = re.compile(r"^s3[an]:")
# A secret may contain a slash that should be encoded. `abfs://container@account` has no secret.
# `sig` is the signature of an Azure SAS token, which grants access to whoever has it.
_CREDENTIALS: Final = re.compile(
    r"(?<=://)[^\s@]*:[^\s@]*(?=@)|(?:(?<=[?&]client_secret=)|(?<=[?&]sig=))[^&\s']+"
)


def for_arrow(location: str) -> str:
    return _HADOOP_S3.sub("s3:", location)


def without_credentials(text: str) -> str:
    """Mask the key and secret of each URI in a text.

    Example:
        >>> without_credentials("s3://key:secret@bucket/rows can't be opened")
        "s3://***@bucket/rows can't be opened"
    """
    return _CREDENTIALS.sub("***", text)
