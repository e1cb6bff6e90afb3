"""Places of pages that are filled with what runs have left."""

import re


def filled(text: str, name: str, content: str) -> str:
    """A page's text, with new content between ``<!-- name -->`` and ``<!-- end of name -->``."""
    place = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- end of {name} -->)", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"there is no place for {name}")
    return place.sub(lambda _: f"\n{content}\n\n", text)
