"""Places in pages that are filled with the results of runs."""

import re


def filled(text: str, name: str, content: str) -> str:
    """Return a page's text with new content between ``<!-- name -->`` and its end mark."""
    place = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- end of {name} -->)", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"there is no place for {name}")
    return place.sub(lambda _: f"\n{content}\n\n", text)
