#!/usr/bin/env python3
"""read_checkpoint.py CHECKPOINT EXPECTED [pulled]

Reads a checkpoint with json and NumPy alone, by docs/checkpoint-format.md, and compares every
array with the files of EXPECTED; with `pulled`, the parameters that workers pull: TABLE.parameters, and
TABLE.values in the order of the keys. Where PyTorch and safetensors are installed, with these too.
"""
import json
import os
import sys

import numpy

import safetensors_numpy


def partition(table, key, partitions):
    """The partition of a key, by splitmix64's finalizer."""
    mask = 2**64 - 1
    x = int.from_bytes(key, "little") + table.get("id", 0) * 0x9E3779B97F4A7C15 & mask
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    x ^= x >> 31
    return (x >> 32) * partitions >> 32


def read(path):
    """Dense arrays by (table, array), and rows by table and key: bytes."""
    with open(os.path.join(path, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    assert manifest["format_version"] in (1, 2)
    dense, rows = {}, {}
    if "base" in manifest:
        rows = read(os.path.join(os.path.dirname(path), manifest["base"]["name"]))[1]
        for table in manifest["tables"]:
            whole = set(table.get("whole_partitions", []))
            old = rows.get(table["spec"]["name"], {})
            for key in [k for k in old if partition(table, k, manifest["partitions"]) in whole]:
                del old[key]
    for file in manifest["files"]:
        if not file.get("tensors"):
            continue
        tensors = safetensors_numpy.load(os.path.join(path, file["name"]))
        arrays = {t["array"]: tensors[t["name"]] for t in file["tensors"]}
        if "keys" in arrays:
            table = rows.setdefault(file["tensors"][0]["table"], {})
            order = ["values", "applies"] + sorted(set(arrays) - {"keys", "values", "applies"})
            for i, key in enumerate(arrays["keys"]):
                if arrays["applies"][i] == 0:  # dropped since the base
                    table.pop(key.tobytes(), None)
                    continue
                table[key.tobytes()] = b"".join(arrays[a][i].tobytes() for a in order)
            continue
        for t in file["tensors"]:
            whole = dense.setdefault((t["table"], t["array"]), {})
            array, at = tensors[t["name"]].ravel(), 0
            for r in t.get("ranges", [{"first": 0, "count": array.size}]):
                first, count = int(r.get("first", 0)), int(r["count"])
                whole[first] = array[at:at + count]
                at += count
    parts = {name: b"".join(whole[first].tobytes() for first in sorted(whole))
             for name, whole in dense.items()}
    return parts, rows, manifest


def check_index(path, parts):
    """Hugging Face's index leads to every parameter, with its shape."""
    index_path = os.path.join(path, "model.safetensors.index.json")
    if not os.path.exists(index_path):
        return False
    with open(index_path, encoding="utf-8") as f:
        index = json.load(f)
    size = 0
    for tensor, file in index["weight_map"].items():
        array = safetensors_numpy.load(os.path.join(path, file))[tensor]
        assert array.tobytes() == parts[tensor, "parameters"], tensor
        size += array.nbytes
    assert size == index["metadata"]["total_size"]
    assert len(index["weight_map"]) == sum(array == "parameters" for _, array in parts)
    try:
        import safetensors.torch
        import torch
    except ImportError:
        return True
    for tensor, file in index["weight_map"].items():
        loaded = safetensors.torch.load_file(os.path.join(path, file))[tensor]
        assert loaded.contiguous().view(torch.uint8).numpy().tobytes() == parts[tensor, "parameters"]
    return True


def main():
    path, expected = sys.argv[1:3]
    pulled = sys.argv[3:] == ["pulled"]
    parts, rows, manifest = read(path)
    dims = {t["spec"]["name"]: t["spec"].get("dim", 0) for t in manifest["tables"]}
    names = sorted(os.listdir(expected))
    for name in names:
        table, array = name.rsplit(".", 1)
        table = table.replace("%2F", "/")
        with open(os.path.join(expected, name), "rb") as f:
            want = f.read()
        keys = sorted(rows.get(table, {}), key=lambda k: int.from_bytes(k, "little"))
        if array == "rows":
            got = b"".join(key + rows[table][key] for key in keys)
        elif array == "values":
            # The first array of a row.
            got = b"".join(rows[table][key][:dims[table] * 4] for key in keys)
        else:
            got = parts[table, array]
        assert got == want, f"{name} differs"
    wanted = sum(array == "parameters" for _, array in parts) if pulled else len(parts)
    assert len(names) == wanted + len(rows)
    sliced = any(t.get("ranges") for f in manifest["files"] for t in f.get("tensors", []))
    assert check_index(path, parts) != sliced
    print(f"{len(manifest['tables'])} tables")


main()
