// Sizes in bytes as people write them, on command lines and in configuration files.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_BASE_BYTE_SIZE_H_
#define VERBENA_PROTO_BASE_BYTE_SIZE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace verbena {

// "4096", "512MiB", "64G", "1.5 TB": K, M, G, T and KiB to PiB are powers of 1024, KB to TB powers
// of 1000; upper or lower case. Empty: it is no size.
std::optional<uint64_t> ParseByteSize(const std::string& text);

// For transform() of an option whose value is a number of bytes. An error names the allowed sizes.
CLI::Validator ByteSize(uint64_t least, uint64_t most);

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_BYTE_SIZE_H_
