"""What the site does with code in tables; MkDocs calls it, as mkdocs.yml says."""

import re
from typing import Any, Final

_CODE: Final = re.compile(r"`[^`\n]+`")
_CELL: Final = re.compile(r"<td\b.*?</td>", re.DOTALL)
_CODE_ELEMENT: Final = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
# Characters from which on a name may be broken.
_LONG: Final = 28
_JOINT: Final = re.compile(r"(?<=[a-z0-9])(?:::|_|\.(?=\w))|(?<=\[)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    r"""Takes the backslash from a table's ``\|`` in code, which GitHub wants and the site shows.

    Args:
        markdown: A page.

    Example:
        >>> on_page_markdown("| `str \\| None` | a \\| b |")
        '| `str | None` | a \\| b |'
    """
    return "\n".join(
        _CODE.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in markdown.split("\n")
    )


def on_page_content(html: str, **_: Any) -> str:
    """Lets long names in tables be broken where their words join, and nowhere else.

    Args:
        html: A page's content.

    Example:
        >>> on_page_content("<td><code>test_staged.py::test_earlier_copies</code></td>")
        '<td><code>test_<wbr>staged.<wbr>py::<wbr>test_<wbr>earlier_<wbr>copies</code></td>'
    """
    return _CELL.sub(lambda cell: _CODE_ELEMENT.sub(_breakable, cell[0]), html)


def _breakable(code: re.Match[str]) -> str:
    if len(code[0]) < _LONG:
        return code[0]
    return _JOINT.sub(lambda joint: f"{joint[0]}<wbr>", code[0])
