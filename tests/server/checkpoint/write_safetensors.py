#!/usr/bin/env python3
"""write_safetensors.py FILE: a tensor of each type that NumPy has, written with NumPy alone."""
import sys

import numpy

import safetensors_numpy

tensors = {}
for name, dtype in safetensors_numpy.TYPES.items():
    array = numpy.arange(6).reshape(2, 3)
    if name in ("BF16", "BOOL"):
        continue
    if name[0] == "F":
        array = -(array + 0.5)
    elif name[0] == "I":
        array = -array
    tensors["of " + name] = array.astype(dtype)
safetensors_numpy.save(sys.argv[1], tensors, {"by": "numpy"})
