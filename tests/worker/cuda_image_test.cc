// The content of the compiled GPU kernels.
#include <elf.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "worker/cuda/kernel_image.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {
namespace {

#ifdef VERBENA_TEST_KERNELS

template <typename T>
T At(absl::Span<const std::byte> bytes, size_t offset) {
  T value;
  REQUIRE(offset + sizeof(T) <= bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The kernels that a cubin defines: global functions of its symbol table.
std::vector<std::string> KernelsOf(absl::Span<const std::byte> cubin) {
  const auto header = At<Elf64_Ehdr>(cubin, 0);
  std::vector<std::string> names;
  for (size_t s = 0; s < header.e_shnum; ++s) {
    const auto section = At<Elf64_Shdr>(cubin, header.e_shoff + s * header.e_shentsize);
    if (section.sh_type != SHT_SYMTAB) continue;
    const auto strings =
        At<Elf64_Shdr>(cubin, header.e_shoff + section.sh_link * header.e_shentsize);
    for (size_t i = 0; i < section.sh_size / sizeof(Elf64_Sym); ++i) {
      const auto symbol = At<Elf64_Sym>(cubin, section.sh_offset + i * sizeof(Elf64_Sym));
      if (symbol.st_info != ELF64_ST_INFO(STB_GLOBAL, STT_FUNC) || symbol.st_size == 0) continue;
      names.emplace_back(
          reinterpret_cast<const char*>(cubin.data() + strings.sh_offset + symbol.st_name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("the image holds every kernel, for every architecture and as PTX of the newest") {
  const absl::Span<const std::byte> image = KernelImage();
  REQUIRE(image.size() > 16);
  CHECK(reinterpret_cast<uintptr_t>(image.data()) % 64 == 0);
  // A layout that NVIDIA does not document, as many programs read it: a header of 16 bytes (magic,
  // version, its size, the size of the rest), then entries, each a header (kind, its size, its
  // payload's, and at 28 the architecture) and a payload: PTX (1) or ELF (2).
  REQUIRE(At<uint32_t>(image, 0) == 0xba55ed50);
  REQUIRE(At<uint16_t>(image, 6) == 16);
  REQUIRE(At<uint64_t>(image, 8) == image.size() - 16);
  std::vector<std::string> expected(std::begin(kKernelNames), std::end(kKernelNames));
  std::sort(expected.begin(), expected.end());
  std::vector<uint32_t> code, ptx;
  for (size_t at = 16; at < image.size();) {
    const auto kind = At<uint16_t>(image, at);
    const auto header = At<uint32_t>(image, at + 4);
    const auto size = At<uint64_t>(image, at + 8);
    const auto architecture = At<uint32_t>(image, at + 28);
    REQUIRE(at + header + size <= image.size());
    const absl::Span<const std::byte> payload = image.subspan(at + header, size);
    if (kind == 2) {
      REQUIRE(std::memcmp(payload.data(), ELFMAG, SELFMAG) == 0);
      // CUDA 13 has it in the second byte; 12, before sm_100, in the lowest.
      const auto flags = At<Elf64_Ehdr>(payload, 0).e_flags;
      CHECK(((flags >> 8 & 0xff) == architecture || (flags & 0xff) == architecture));
      CHECK(KernelsOf(payload) == expected);
      code.push_back(architecture);
    } else {
      REQUIRE(kind == 1);
      const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
      CHECK(text.find(".target sm_" + std::to_string(architecture)) != text.npos);
      for (const std::string& name : expected) {
        const size_t begin = text.find(".entry " + name + "(");
        REQUIRE(begin != text.npos);
        // The text model's kernels call tanh, exp and log, for which CUDA uses fma and .ftz.
        if (name.rfind("verbena_text_", 0) == 0) continue;
        INFO(name);
        const std::string_view kernel = text.substr(begin, text.find(".entry ", begin + 1) - begin);
        CHECK(kernel.find("fma.rn") == kernel.npos);
        CHECK(kernel.find(".ftz") == kernel.npos);
      }
      ptx.push_back(architecture);
    }
    at += header + size;
  }
  std::sort(code.begin(), code.end());
  CHECK(code == std::vector<uint32_t>{80, 90, 100});
  CHECK(ptx == std::vector<uint32_t>{100});
}

#else

TEST_CASE("without a CUDA compiler there is no image") { CHECK(KernelImage().empty()); }

#endif

}  // namespace
}  // namespace verbena::worker
