#include "worker/cuda/kernel_image.h"

#ifdef VERBENA_KERNEL_IMAGE

// The assembler reads the file: a megabyte written as an array takes a compiler seconds. The driver
// reads the header in place, so it is aligned.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    "verbena_kernel_image:\n"
    ".incbin \"" VERBENA_KERNEL_IMAGE
    "\"\n"
    "verbena_kernel_image_end:\n"
    ".byte 0\n"
    ".popsection\n");

// Where they are: the labels above, of this object alone.
extern "C" __attribute__((visibility("hidden"))) const std::byte verbena_kernel_image[];
extern "C" __attribute__((visibility("hidden"))) const std::byte verbena_kernel_image_end[];

namespace verbena::worker {

absl::Span<const std::byte> KernelImage() {
  return {verbena_kernel_image,
          static_cast<size_t>(verbena_kernel_image_end - verbena_kernel_image)};
}

}  // namespace verbena::worker

#else

namespace verbena::worker {

absl::Span<const std::byte> KernelImage() { return {}; }

}  // namespace verbena::worker

#endif
