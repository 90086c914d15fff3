"""Runs one file of tests with pytest. Exit status 77: it was skipped, because a module is missing."""
import importlib.util
import os
import sys

if importlib.util.find_spec("pytest") is None:
    print("skipped: no pytest")
    sys.exit(77)

import pytest  # noqa: E402: it may be missing


class Count:
    """Whether every test was skipped."""

    ran = skipped = 0

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or (report.when == "setup" and not report.passed):
            self.skipped += report.skipped
            self.ran += not report.skipped

    def pytest_collectreport(self, report):
        self.skipped += report.skipped


def main():
    count = Count()
    folder = os.path.dirname(os.path.abspath(__file__))
    print(f"{sys.executable}, Python {sys.version.split()[0]}")
    status = pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", folder, "-rs",
                          os.path.join(folder, sys.argv[1]), *sys.argv[2:]], [count])
    ended = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return 77 if status in ended and not count.ran and count.skipped else status


if __name__ == "__main__":  # multiprocessing imports this file in its processes
    sys.exit(main())
