"""URLs in settings, separated from their user info, which must never be shown."""

from collections.abc import Collection
from urllib.parse import unquote, urlsplit, urlunsplit

from spark_eos.errors import ConfigurationError


def without_user_info(
    url: str, setting: str, schemes: Collection[str] = ("http", "https")
) -> tuple[str, str]:
    """Return a URL without its user info, and the user info; refuse an ambiguous URL."""
    try:
        parts = urlsplit(url.strip())
        is_url = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    # In `http://alice:a/b@host`, the host is `alice`, and a client's error would quote the rest.
    if not is_url or "@" in parts.path + parts.query + parts.fragment:
        raise ConfigurationError(
            f"{setting} must be an {' or '.join(schemes)} URL; percent-encode the characters / ? # "
            ", @ in its user name, password and path (%2F %3F %23 %2C %40)"
        )
    user_info, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=place)), unquote(user_info)
