"""Where the package does not run it says so when it is imported."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_FCNTL = "import sys; sys.modules['fcntl'] = None; import ckptstore"


def test_windows_is_refused_by_name() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_FCNTL], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "ckptstore does not run on Windows yet" in ran.stderr
