"""Another user of this host, who owns files that spark-eos must not use."""

import os

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
