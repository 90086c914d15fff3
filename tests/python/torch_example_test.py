"""The examples train what they say."""
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = os.environ.get("VERBENA_ROOT") or os.path.join(os.path.dirname(__file__), "..", "..")


def test_digits():
    script = os.path.join(ROOT, "worker", "python", "examples", "digits.py")
    ran = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout
    found = re.search(r"accuracy (\S+) on 357 held-out digits, 2 workers", ran.stdout)
    assert found, ran.stdout
    print(ran.stdout)
    assert float(found.group(1)) >= 0.96
