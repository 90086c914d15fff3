#!/usr/bin/env python3
"""Pushes and pulls PyTorch's tensors on a GPU through the C interface, and looks at a trace of it.

    trace.py LIBVERBENA HOST:PORT TRACE.json

While a stream computes, a step that depends on it is pushed and pulled, and the stream is given more to
do. Checked: the call returns before the gradient is written; pulled parameters have the right bits; the caller's
kernels run on between the first copy and the last; no call of CUDA's runtime or driver synchronizes while the
push is started. Printed: how fast both were. The trace (chrome://tracing, ui.perfetto.dev) stays.
"""
import ctypes
import json
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile

ELEMENTS = 32 << 20
SYNC, CUDA, DEFAULT_TIMEOUT = 1, 2, -1
POINTER = ctypes.c_void_p


def sized(*fields):
    """A struct of verbena.h: the fields up to the last one used here, and room for those behind."""

    class Sized(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), *fields, ("more", ctypes.c_uint8 * 1024)]

    return Sized


ConnectOptions = sized(("cluster", ctypes.c_char_p), ("job", ctypes.c_char_p), ("name", ctypes.c_char_p),
                       ("transport", ctypes.c_char_p))
TableSpec = sized(("name", ctypes.c_char_p), ("job", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_uint64)),
                  ("dimensions", ctypes.c_size_t), ("dtype", ctypes.c_int32), ("consistency", ctypes.c_int32),
                  ("reduction", ctypes.c_int32), ("non_finite", ctypes.c_int32), ("initializer", ctypes.c_int32),
                  ("chunk_bytes", ctypes.c_uint32), ("initializer_a", ctypes.c_double),
                  ("initializer_b", ctypes.c_double), ("initializer_seed", ctypes.c_uint64),
                  ("optimizer", ctypes.c_char_p), ("rate", ctypes.c_double))


class Verbena:
    """The few calls that are needed."""

    def __init__(self, library, cluster):
        self.api = ctypes.CDLL(library)
        self.api.verbena_last_error.restype = ctypes.c_char_p
        options = ConnectOptions()
        self.api.verbena_connect_options_init(ctypes.byref(options), ctypes.c_size_t(ctypes.sizeof(options)))
        options.cluster = cluster.encode()
        options.job = b"trace"
        self.client = POINTER()
        self.call("verbena_connect", ctypes.byref(options), ctypes.byref(self.client))

    def call(self, name, *arguments):
        if getattr(self.api, name)(*arguments) != 0:
            sys.exit(f"trace.py: {name}: {self.api.verbena_last_error().decode()}")

    def table(self, name, elements):
        spec, table, shape = TableSpec(), POINTER(), ctypes.c_uint64(elements)
        self.api.verbena_table_spec_init(ctypes.byref(spec), ctypes.c_size_t(ctypes.sizeof(spec)))
        spec.name, spec.shape, spec.dimensions = name.encode(), ctypes.pointer(shape), 1
        spec.consistency, spec.optimizer, spec.rate = SYNC, b"sgd", 1.0
        self.call("verbena_table_create", self.client, ctypes.byref(spec), ctypes.c_int64(DEFAULT_TIMEOUT),
                  ctypes.byref(table))
        return table

    def region(self, tensor, stream):
        region = POINTER()
        self.call("verbena_region_register", self.client, POINTER(tensor.data_ptr()),
                  ctypes.c_size_t(tensor.numel() * tensor.element_size()), CUDA, tensor.device.index,
                  ctypes.byref(region))
        self.api.verbena_region_set_stream(region, POINTER(stream.cuda_stream))
        return region

    def push_pull(self, table, gradient, parameters):
        ticket = POINTER()
        self.call("verbena_push_pull", self.client, table, gradient, parameters, None,
                  ctypes.c_int64(DEFAULT_TIMEOUT), ctypes.byref(ticket))
        return ticket

    def wait(self, ticket):
        self.call("verbena_ticket_wait", ticket, ctypes.c_int64(DEFAULT_TIMEOUT))
        self.api.verbena_ticket_free(ticket)


class Trainer:
    def __init__(self, verbena):
        self.verbena = verbena
        self.stream = torch.cuda.Stream()
        device = torch.device("cuda", torch.cuda.current_device())
        self.parameters, self.gradient, self.want = (torch.zeros(ELEMENTS, device=device) for _ in range(3))
        self.matrix = torch.randn(8192, 8192, device=device)
        torch.cuda.synchronize()
        self.table = verbena.table("weights", ELEMENTS)
        self.from_gpu = verbena.region(self.gradient, self.stream)
        self.to_gpu = verbena.region(self.parameters, self.stream)

    def compute(self, products):
        product = self.matrix
        for _ in range(products):
            product = (self.matrix @ product) * 1e-4

    def step(self, products):
        """Microseconds of the call, and whether the gradient had been written when it returned."""
        with torch.cuda.stream(self.stream):
            self.compute(products)
            numbers = torch.randn(ELEMENTS, device=self.gradient.device)
            self.gradient.copy_(numbers)
            self.want.sub_(numbers)
            written = torch.cuda.Event()
            written.record()
            began = time.perf_counter()
            with torch.profiler.record_function("verbena push_pull"):
                ticket = self.verbena.push_pull(self.table, self.from_gpu, self.to_gpu)
            took = time.perf_counter() - began
            early = not written.query()
            self.compute(products)
        self.verbena.wait(ticket)
        torch.cuda.synchronize()
        if not torch.equal(self.parameters, self.want):
            sys.exit("trace.py: what was pulled is not what the pushes make")
        return took * 1e6, early


def spans(events, accept):
    return sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("ph") == "X" and accept(e))


def look(events):
    """The figures of one step's trace; exits with 1 if one of them is wrong."""
    copies = spans(events, lambda e: e.get("cat") == "gpu_memcpy" and "Pinned" in e["name"] and
                   e["args"].get("bytes", 0) >= 65536)
    products = spans(events, lambda e: e.get("cat") == "kernel" and "gemm" in e["name"])
    call = spans(events, lambda e: e["name"] == "verbena push_pull" and e.get("cat") != "gpu_user_annotation")[0]
    waits = [name for begin, _, name in spans(events, lambda e: e.get("cat") in ("cuda_runtime", "cuda_driver"))
             if "Synchronize" in name and call[0] <= begin <= call[1]]
    first, last = copies[0][0], max(end for _, end, _ in copies)
    moved = sum(e["args"]["bytes"] for e in events if e.get("cat") == "gpu_memcpy" and "Pinned" in e["name"])
    beside = [e - b for b, e, _ in products if b < last and e > first]
    alone = [e - b for b, e, _ in products if b >= last or e <= first]
    covered = sum(max(0, min(last, e) - max(first, b)) for b, e, _ in products) / (last - first)
    print(f"{len(copies)} copies in {(last - first) / 1e3:.1f} ms, {moved / (last - first) / 1e3:.1f} GB/s; the caller's "
          f"matrix products ran in {covered:.0%} of that, {max(beside, default=0) / 1e3:.2f} ms each at most, "
          f"{sorted(alone)[len(alone) // 2] / 1e3:.2f} ms with nothing beside them")
    if waits:
        sys.exit(f"trace.py: the call synchronized: {waits}")
    if covered < 0.8:
        sys.exit("trace.py: the caller's stream stood still while its gradient was copied")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    library, cluster, path = sys.argv[1:]
    trainer = Trainer(Verbena(library, cluster))
    for _ in range(3):  # lanes are opened, buffers are made
        trainer.step(2)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        took, early = trainer.step(8)
    trace.export_chrome_trace(path)
    with open(path, encoding="utf-8") as file:
        look(json.load(file)["traceEvents"])
    print(f"push_pull of {ELEMENTS * 4 >> 20} MiB returned after {took:.0f} us, "
          f"{'before' if early else 'after'} its gradient was written")
    if not early:
        sys.exit("trace.py: the call waited for the caller's stream")


if __name__ == "__main__":
    main()
