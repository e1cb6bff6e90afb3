"""The versions that the tests run with, for a test's own environments."""

from importlib import metadata
from pathlib import Path


def write_pins(path: Path) -> Path:
    """Writes pip constraints with the versions installed here, except this project."""
    found = {f"{package.name}=={package.version}\n" for package in metadata.distributions()}
    path.write_text("".join(sorted(pin for pin in found if not pin.startswith("spark-eos"))))
    return path
