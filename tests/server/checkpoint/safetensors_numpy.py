"""safetensors with json and NumPy alone."""
import json

import numpy

TYPES = {"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4",
         "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
         "BF16": "<u2"}  # NumPy has none: its bits


def load(path):
    """The tensors of a file by their names."""
    with open(path, "rb") as f:
        content = f.read()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length:]
    return {name: numpy.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]],
                                   TYPES[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}


def save(path, tensors, metadata, bfloat16=()):
    """Writes arrays as a file; of the tensors `bfloat16` they are the bits."""
    names = {numpy.dtype(v): k for k, v in TYPES.items() if k != "BF16"}
    header, at = {"__metadata__": metadata}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "BF16" if name in bfloat16 else names[array.dtype],
                        "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            f.write(array.tobytes())
