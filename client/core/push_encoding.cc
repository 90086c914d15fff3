#include "client/core/push_encoding.h"

#include "client/trace/trace.h"
#include "shard/codec/codec.h"

namespace verbena::client {

void Residual::Encode(ElementType type, uint32_t chunk, const float* from, std::byte* to,
                      size_t elements) {
  const std::lock_guard<std::mutex> lock(locks_[chunk % kLocks]);
  std::unique_ptr<float[]>& lost = chunks_[chunk];
  if (lost == nullptr) lost = std::make_unique<float[]>(elements);
  codec::Encode(shard::BestIsa(), type, from, lost.get(), to, elements);
}

void PushEncoding::Run() {
  const auto* from = reinterpret_cast<const float*>(call_.from->data() + call_.offset);
  std::byte* to = call_.to->data();
  const TracedBlock traced("encode", call_.to->size());
  for (uint32_t c = call_.first; c < call_.first + call_.chunks; ++c) {
    const uint32_t elements = call_.layout.elements_of(c);
    call_.residual->Encode(call_.type, c, from, to, elements);
    from += elements;
    to += Stride(call_.type, elements);
  }
}

}  // namespace verbena::client
