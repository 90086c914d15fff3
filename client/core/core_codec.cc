// Tables with codecs. Gradients are encoded once, when they are pushed, and the encoding error is
// kept for the next push of the same chunks. Records and resent records have the data in the push
// buffer. So a resend has the same bits and does not change the residual. Parameters arrive in
// staging and are decoded from there when the reply is handled (client/operations/pull.cc).
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/client_core_impl.h"
#include "proto/spec/table_spec.h"

namespace verbena::client {

absl::Status ClientCore::Impl::CheckCodec(const TableState& table, const Slice& slice, Data data) {
  if (slice.block->device() == nullptr) return absl::OkStatus();
  if (data == Data::kPulled) {
    if (!table.decodes()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the destination lies in memory of a device; table '", table.name(), "' has pull_codec ",
        CodecName(table.info.spec().pull_codec()),
        ", whose parameters are decoded in host memory: allowed: regions of the host"));
  }
  if (data != Data::kGradients || !table.encodes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the gradient lies in memory of a device; table '", table.name(),
                   "' has push_codec ", CodecName(table.info.spec().push_codec()),
                   ", whose gradients are encoded in host memory: allowed: regions of the host"));
}

absl::StatusOr<std::unique_ptr<PushEncoding>> ClientCore::Impl::NewEncoding(const Target& target,
                                                                            const Slice& slice) {
  TableState* table = target.table;
  const DenseLayout& layout = table->layout;
  if (table->residual == nullptr) table->residual = std::make_shared<Residual>(table->chunks());
  const size_t bytes = size_t{target.chunks - 1} * table->PushBytes(layout.chunk_elements) +
                       table->PushBytes(layout.elements_of(target.first + target.chunks - 1));
  auto block = push_buffers.Take(bytes);
  if (!block.ok()) return block.status();
  return std::make_unique<PushEncoding>(
      PushEncoding::Call{table->residual, layout, table->push_type, target.first, target.chunks,
                         slice.block, slice.offset, *std::move(block)});
}

absl::StatusOr<std::unique_ptr<PushEncoding>> ClientCore::StartEncoding(std::string_view call,
                                                                        uint32_t table,
                                                                        const Slice& gradient) {
  auto target = impl_->Check(call, table, gradient, Impl::Data::kGradients);
  if (!target.ok()) return target.status();
  if (!target->table->encodes()) return nullptr;
  return impl_->NewEncoding(*target, gradient);
}

absl::Status ClientCore::Impl::Encoded(const Target& target, const Slice& slice,
                                       std::unique_ptr<PushEncoding> encoded, Operation* operation,
                                       size_t* offset) {
  if (!target.table->encodes()) return absl::OkStatus();
  if (encoded == nullptr) {
    const CurrentCall::Scope scope(keeper.current_call(), "encoding a gradient",
                                   slice.count * sizeof(float));
    auto own = NewEncoding(target, slice);
    if (!own.ok()) return own.status();
    (*own)->Run();
    encoded = *std::move(own);
  }
  operation->blocks[0] = encoded->block();
  *offset = 0;
  return absl::OkStatus();
}

}  // namespace verbena::client
