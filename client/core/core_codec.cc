// Tables with codecs. Gradients are encoded when they are pushed, once, and what was lost by that
// is kept for the next push of the same chunks. Records carry, and carry again, what lies in the
// push buffer: so a resend has the same bits and does not touch the residual. Parameters come to
// staging, and are decoded from there when the answer is handled (journal_answers.cc).
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/client_core_impl.h"
#include "proto/table_spec.h"
#include "shard/codec/codec.h"

namespace verbena::client {

absl::Status ClientCore::Impl::CheckCodec(const TableState& table, const Slice& slice, bool push) {
  if (slice.block->device() == nullptr) return absl::OkStatus();
  if (!push) {
    if (!table.decodes()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the destination lies in memory of a device; table '", table.name(), "' has pull_codec ",
        CodecName(table.info.spec().pull_codec()),
        ", whose parameters are decoded in host memory: allowed: regions of the host"));
  }
  if (!table.encodes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the gradient lies in memory of a device; table '", table.name(),
                   "' has push_codec ", CodecName(table.info.spec().push_codec()),
                   ", whose gradients are encoded in host memory: allowed: regions of the host"));
}

absl::Status ClientCore::Impl::Encoded(const Target& target, const Slice& slice,
                                       Operation* operation, size_t* offset) {
  TableState* table = target.table;
  if (!table->encodes()) return absl::OkStatus();
  const DenseLayout& layout = table->layout;
  const CurrentCall::Scope scope(keeper.current_call(), "encoding a gradient",
                                 slice.count * sizeof(float));
  if (table->residual.empty()) table->residual.assign(layout.elements, 0);
  const uint32_t last = target.first + target.chunks - 1;
  const size_t bytes = size_t{target.chunks - 1} * table->PushBytes(layout.chunk_elements) +
                       table->PushBytes(layout.elements_of(last));
  auto block = push_buffers.Take(bytes);
  if (!block.ok()) return block.status();
  std::byte* to = (*block)->data();
  const auto* from = reinterpret_cast<const float*>(slice.block->data() + slice.offset);
  const TracedBlock traced("encode", bytes);
  for (uint32_t c = target.first; c <= last; ++c) {
    const uint32_t elements = layout.elements_of(c);
    codec::Encode(shard::BestIsa(), table->push_type, from,
                  table->residual.data() + layout.first_element(c), to, elements);
    from += elements;
    to += table->PushBytes(elements);
  }
  operation->blocks[0] = *std::move(block);
  *offset = 0;
  return absl::OkStatus();
}

}  // namespace verbena::client
