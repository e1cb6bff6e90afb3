"""The versions that the tests run with, for environments of a test's own."""

from importlib import metadata
from pathlib import Path


def write_pins(path: Path) -> Path:
    """Writes constraints for pip: what is installed here, but not this project."""
    found = {f"{package.name}=={package.version}\n" for package in metadata.distributions()}
    path.write_text("".join(sorted(pin for pin in found if not pin.startswith("spark-eos"))))
    return path
