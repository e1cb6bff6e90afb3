"""Opens each page of build/docs in Chromium, in desktop and phone size, in light and dark.

Exits with an error if a page scrolls sideways, a table's cell can't be scrolled into view, or a
line of code is cut off in desktop size. Writes a screenshot of the top of each page to the
directory given as argument. Needs Chromium and ``pip install playwright``, which is not pinned.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, sync_playwright

_SITE: Final = Path(__file__).parent.parent / "build" / "docs"
_SIZES: Final = {"desk": (1280, 900), "phone": (390, 844)}
_WRONG: Final = """() => {
  const wrong = [];
  scrollTo(10000, 0);
  if (scrollX > 0) wrong.push(`scrolls sideways by ${scrollX}`);
  for (const cell of document.querySelectorAll("article td")) {
    const scrolls = (box) => ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
    let box = cell.parentElement;
    while (box !== document.body && !scrolls(box)) box = box.parentElement;
    const hidden = cell.getBoundingClientRect().right - box.getBoundingClientRect().right;
    if (hidden > box.scrollWidth - box.clientWidth + 1) wrong.push(`hides "${cell.textContent}"`);
  }
  const phone = matchMedia("(max-width: 37.5em)").matches;
  for (const line of document.querySelectorAll("article pre > code")) {
    const cut = line.scrollWidth - line.clientWidth;
    if (cut > 1 && !phone) wrong.push(`cuts ${cut} off "${line.textContent.slice(0, 60)}"`);
  }
  return wrong;
}"""


def _problems(page: Page, pictures: Path, suffix: str) -> Iterator[str]:
    for path in sorted(_SITE.glob("*.html")):
        page.goto(path.as_uri(), wait_until="load")
        # Once loaded, the theme puts tables into boxes.
        page.wait_for_timeout(200)
        page.screenshot(path=pictures / f"{path.stem}-{suffix}.png")
        yield from (f"{path.stem}, {suffix}: {wrong}" for wrong in page.evaluate(_WRONG))


def main(pictures: Path) -> int:
    """Print the problems, and return the exit status."""
    found: list[str] = []
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path)
        for device, (width, height) in _SIZES.items():
            for scheme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                found += _problems(page, pictures, f"{device}-{scheme}")
                page.close()
        browser.close()
    sys.stdout.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
