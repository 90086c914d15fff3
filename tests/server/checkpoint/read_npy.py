#!/usr/bin/env python3
"""read_npy.py EXPORT EXPECTED: numpy.load() of every file gives the bytes in EXPECTED."""
import os
import sys

import numpy

export, expected = sys.argv[1:]
checked = 0
for name in sorted(os.listdir(expected)):
    table, array = name.rsplit(".", 1)
    with open(os.path.join(expected, name), "rb") as f:
        want = f.read()
    if array == "rows":
        keys = numpy.load(os.path.join(export, table + ".keys.npy"))
        values = numpy.load(os.path.join(export, table + ".values.npy"))
        assert values.shape[0] == keys.shape[0]
        size = len(want) // len(keys)
        rows = {want[i:i + 8]: want[i + 8:i + 8 + values.itemsize * values.shape[1]]
                for i in range(0, len(want), size)}
        got = {key.tobytes(): row.tobytes() for key, row in zip(keys, values)}
        assert got == rows, name
    else:
        got = numpy.load(os.path.join(export, table + ("" if array == "parameters" else "." + array) + ".npy"))
        if got.nbytes == 2 * len(want):  # bf16, as f32
            got = (got.view("<u4") >> 16).astype("<u2")
        assert got.tobytes() == want, name
    checked += 1
assert checked > 10, checked
