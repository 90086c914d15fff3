#!/usr/bin/env python3
"""Fails when libverbena.so shows a symbol that is not public.

    exports_test.py LIBRARY INCLUDE     checks the symbols listed by nm; INCLUDE holds verbena/
    exports_test.py --self-test         expects planted symbols to be distinguished
"""
import os
import re
import subprocess
import sys

# Public classes of C++, as client.h has them.
CLASSES = ("Client", "Region", "RowScan", "Table", "Ticket")
# Its functions outside of classes, of half.h.
FUNCTIONS = ("FloatsFromBFloat16s", "BFloat16sFromFloats", "FloatsFromHalves", "HalvesFromFloats")
# For the messages that client.h shows, generated code also has these, outside of any class.
MESSAGES = re.compile(
    r"(verbena::v1::\w+\* )?google::protobuf::Arena::CreateMaybeMessage<verbena::v1::\w+>\("
    r"google::protobuf::Arena\*\)$")
PREFIX = re.compile(r"^(typeinfo for|typeinfo name for|vtable for) ")


def is_public(name, functions):
    """Whether a demangled symbol is part of the public API; `functions` are those of C."""
    if MESSAGES.match(name):
        return True
    if "::Impl::" in name.split("(")[0] or "::State::" in name.split("(")[0]:
        return False
    name = PREFIX.sub("", name)
    if name.startswith("verbena::v1::"):
        return True
    if re.match(r"verbena::(%s)(::|$)" % "|".join(CLASSES), name):
        return True
    if re.match(r"verbena::(%s)\(" % "|".join(FUNCTIONS), name):
        return True
    return name in functions


def c_functions(include):
    functions = set()
    for header in ("verbena.h", "table_spec.h", "half_numbers.h", "status.h"):
        with open(os.path.join(include, "verbena", header), encoding="utf-8") as f:
            code = re.sub(r"//[^\n]*", "", f.read())
        functions |= set(re.findall(r"VERBENA_EXPORT[^;]*?\b(verbena_\w+)\(", code))
    return functions


def exported(library):
    listed = subprocess.run(["nm", "-D", "--defined-only", "-C", library], check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    return [line.split(" ", 2)[2] for line in listed.splitlines()]


def check(names, functions):
    problems = [f"exported, and not public: {n}" for n in names if not is_public(n, functions)]
    problems += [f"declared, and not exported: {n}" for n in sorted(functions - set(names))]
    for needed in ("verbena::Client::Connect(verbena::ClientOptions const&)",
                   "vtable for verbena::v1::TableSpec"):
        if needed not in names:
            problems.append(f"not exported: {needed}")
    return problems


def self_test():
    functions = {"verbena_connect"}
    good = ("verbena_connect", "verbena::Client::Close()", "verbena::v1::TableSpec::Clear()",
            "verbena::FloatsFromHalves(unsigned short const*, float*, unsigned long)",
            "typeinfo for verbena::v1::Table", "verbena::Table::name[abi:cxx11]() const",
            "verbena::v1::Table* google::protobuf::Arena::CreateMaybeMessage<verbena::v1::Table>("
            "google::protobuf::Arena*)")
    bad = ("verbena::ClientRuntime::Run()", "verbena::client::ClientCore::Join()", "verbena_hidden",
           "verbena::Client::Impl::SliceOf(verbena::Table const&)", "descriptor_table_proto",
           "verbena::rdma::MemoryBlock::~MemoryBlock()", "vtable for verbena::ClientRuntime",
           "std::vector<verbena::Ticket, std::allocator<verbena::Ticket> >::~vector()",
           "google::protobuf::Arena::Reset()", "verbena::ClientCore()")
    problems = [f"refused, though public: {n}" for n in good if not is_public(n, functions)]
    return problems + [f"not found: {n}" for n in bad if is_public(n, functions)]


def main():
    if sys.argv[1] == "--self-test":
        problems = self_test()
    else:
        names = exported(sys.argv[1])
        problems = check(names, c_functions(sys.argv[2]))
        print(f"{len(names)} symbols")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
