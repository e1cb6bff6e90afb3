"""``spark-eos explain``."""

import re
from pathlib import Path
from typing import Final

import click
from rich.markdown import Markdown

from spark_eos._cli.query import terminal

_PACKAGE: Final = Path(__file__).parent.parent
# In a wheel, the page is inside the package; in a clone, it is in the documentation.
_PAGES: Final = (_PACKAGE / "errors.md", _PACKAGE.parent / "docs" / "errors.md")
_ENTRY: Final = re.compile(r"^## (EOS\d\d)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def entries() -> dict[str, str]:
    """Return the documentation's entries for errors and warnings, in Markdown, by code."""
    page = next(path for path in _PAGES if path.is_file())
    return {code: text.strip() for code, text in _ENTRY.findall(page.read_text(encoding="utf-8"))}


@click.command()
@click.argument("code", metavar="CODE")
def explain(code: str) -> None:
    """Explain an error or a warning: its cause, what to check, and how to fix it.

    CODE is at the end of the message, such as EOS54.

    \b
    Example: spark-eos explain EOS54
    """  # noqa: D301 - click needs the character itself
    known = entries()
    if code.upper() not in known:
        raise click.BadParameter(f"{code!r} is not one of {', '.join(known)}", param_hint="CODE")
    text = re.sub(r"\[(\w+)\]\(#\w+\)", r"\1", known[code.upper()])
    text = re.sub(r"\]\((?!https:)", "](docs/", text)
    terminal().print(Markdown(f"**{code.upper()}**: {text}", hyperlinks=False), "")
