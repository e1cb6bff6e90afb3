"""Peak memory of a process."""

import re
from pathlib import Path


def peak_mib(pid: int) -> float:
    """Return the peak resident memory since the process started, in MiB.

    The figure comes from /proc, because psutil has it only on Windows.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) / 1024 if match else 0.0
