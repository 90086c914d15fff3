#!/usr/bin/env python3
"""Models as others write them, with NumPy alone.

    import_model.py write FILE EXPECTED   a model of several dtypes with a table of rows; the bytes
                                          of each table, as workers are to pull them, in EXPECTED
    import_model.py same A B              the tensors of two files are the same, rows in any order
    import_model.py libraries FILE        PyTorch and safetensors load FILE with the same bits
"""
import os
import sys

import numpy

import safetensors_numpy

ROWS, DIM = 3000, 6


def model():
    """Tensors by name, and which of them are BF16: NumPy has only their bits."""
    random = numpy.random.default_rng(20260131)
    normal = random.standard_normal
    keys = random.choice(2**40, ROWS, replace=False).astype("<i8")
    keys[::3] *= -1  # as PyTorch hashes them: servers read the bits as uint64
    tensors = {
        "tower.weight": normal((700, 131)).astype("<f4"),  # of several chunks
        "tower.bias": normal(131).astype("<f2"),
        "head.weight": (normal((131, 40)).astype("<f4").view("<u4") >> 16).astype("<u2"),
        "temperature": numpy.array(0.07, "<f4"),
        "items.keys": keys,
        "items.values": normal((ROWS, DIM)).astype("<f4"),
    }
    return tensors, ("head.weight",)


def write(path, expected):
    """Workers pull these numbers, to the bit."""
    tensors, bfloat16 = model()
    safetensors_numpy.save(path, tensors, {"format": "pt"}, bfloat16)
    for name, array in tensors.items():
        with open(os.path.join(expected, name), "wb") as f:
            f.write(array.tobytes())


def by_key(tensors):
    """The same tensors, rows in the order of their keys, scalars as arrays of one."""
    result = {}
    for name, array in tensors.items():
        array = array.reshape(array.shape or 1)
        keys = tensors.get(name.rsplit(".", 1)[0] + ".keys")
        if keys is not None:
            array = array[numpy.argsort(keys.view("<u8"))]
        result[name] = array.view("<u8") if array.dtype == numpy.dtype("<i8") else array
    return result


def same(first, second):
    first, second = (by_key(safetensors_numpy.load(path)) for path in (first, second))
    assert sorted(first) == sorted(second), (sorted(first), sorted(second))
    for name, array in first.items():
        other = second[name]
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        assert array.tobytes() == other.tobytes(), name


def libraries(path):
    """Exits with 77 where they are not installed."""
    try:
        import safetensors.torch
        import torch
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    loaded = safetensors.torch.load_file(path)
    ours = safetensors_numpy.load(path)
    assert sorted(loaded) == sorted(ours)
    for name, tensor in loaded.items():
        assert list(tensor.shape) == list(ours[name].shape), name
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert raw == ours[name].tobytes(), name


{"write": write, "same": same, "libraries": libraries}[sys.argv[1]](*sys.argv[2:])
