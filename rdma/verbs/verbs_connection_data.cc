// The data path of a connection: posting and completions.
#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "rdma/verbs/verbs_connection.h"
#include "rdma/verbs/verbs_errors.h"

namespace verbena::rdma {
namespace {

constexpr uint32_t kReceiveBatch = 32;

}  // namespace

absl::Status VerbsConnection::PostReceives(uint32_t count) {
  if (qp_ == nullptr || failing()) {
    return absl::FailedPreconditionError("the connection is in error or closed");
  }
  if (count > limits_.receive_depth - receives_) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot post ", count,
                                                     " receives: ", receives_, " of ",
                                                     limits_.receive_depth, " are posted"));
  }
  std::array<ibv_recv_wr, kReceiveBatch> requests;
  while (count > 0) {
    const uint32_t n = std::min(count, kReceiveBatch);
    for (uint32_t i = 0; i < n; ++i) {
      requests[i] = {};
      requests[i].wr_id = WrId(0) | kReceiveBit;
      requests[i].next = i + 1 < n ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(qp_.get(), requests.data(), &bad); error != 0) {
      receives_ += static_cast<uint32_t>(bad - requests.data());
      return ErrnoStatus(absl::StrCat("cannot post receives on ", device_name_), error);
    }
    receives_ += n;
    count -= n;
  }
  return absl::OkStatus();
}

absl::Status VerbsConnection::CheckWrite(const WriteRequest& request) const {
  if (state != State::kEstablished || qp_ == nullptr || failing()) {
    return absl::FailedPreconditionError("the connection is not established, or in error");
  }
  if (request.segments.size() > kMaxSegments) {
    return absl::InvalidArgumentError(
        absl::StrCat("a write of ", request.segments.size(), " segments; allowed: ", kMaxSegments));
  }
  uint64_t bytes = 0;
  for (const Segment& segment : request.segments) {
    if (!WithinBlock(segment)) {
      return absl::InvalidArgumentError("a segment lies outside its memory block");
    }
    bytes += segment.bytes;
  }
  if (max_message_ != 0 && bytes > max_message_) {
    return absl::InvalidArgumentError(absl::StrCat("a write of ", bytes, " bytes; device ",
                                                   device_name_, " sends at most ", max_message_,
                                                   " (max_msg_sz)"));
  }
  // Exact if all are signaled. Completed unsignaled writes stay unknown until the next signaled one
  // completes, so the queue is larger.
  if (signaled_ >= limits_.send_depth || next_ - first_ >= sends_.size() - kBinds) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the send queue is full: ", limits_.send_depth, " writes are outstanding"));
  }
  return absl::OkStatus();
}

absl::Status VerbsConnection::Gather(const WriteRequest& request, ibv_sge* sges, int* count) {
  for (const Segment& segment : request.segments) {
    const std::byte* data = segment.data;
    uint32_t left = segment.bytes;
    if (left == 0) continue;
    absl::StatusOr<const RegisteredMemory*> memory = view_->Find(*segment.block);
    if (!memory.ok()) return memory.status();
    while (left > 0) {
      if (*count == static_cast<int>(max_sges_)) {
        return absl::InvalidArgumentError(absl::StrCat("a write gathers from more than ", max_sges_,
                                                       " memory regions of ", device_name_));
      }
      const auto n = static_cast<uint32_t>(std::min<size_t>(left, (*memory)->LeftAt(data)));
      sges[(*count)++] = {reinterpret_cast<uintptr_t>(data), n, (*memory)->At(data)->lkey};
      data += n;
      left -= n;
    }
  }
  return absl::OkStatus();
}

absl::Status VerbsConnection::PostWrite(const WriteRequest& request) {
  if (absl::Status s = CheckWrite(request); !s.ok()) return s;
  uint32_t bytes = 0;
  for (const Segment& segment : request.segments) bytes += segment.bytes;
  ibv_send_wr& write = chain_[chained_];
  ibv_sge* const sges = sges_[chained_].data();
  int count = 0;
  // Data copied into the work request needs no registration. The CPU copies it.
  const bool copied =
      bytes > 0 && bytes <= inline_bytes_ &&
      std::none_of(request.segments.begin(), request.segments.end(), [](const Segment& segment) {
        return segment.bytes > 0 && segment.block->kind() == MemoryKind::kCuda;
      });
  if (copied) {
    for (const Segment& segment : request.segments) {
      if (segment.bytes == 0) continue;
      sges[count++] = {reinterpret_cast<uintptr_t>(segment.data), segment.bytes, 0};
    }
  } else if (absl::Status s = Gather(request, sges, &count); !s.ok()) {
    return s;
  }
  // Writes are signaled at least at this rate, or the queue would fill with completed ones.
  const bool visible = request.signaled || ++unsignaled_run_ >= signal_every_;
  if (visible) unsignaled_run_ = 0;
  write = {};
  write.wr_id = WrId(next_);
  write.sg_list = sges;
  write.num_sge = count;
  write.opcode = request.immediate.has_value() ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  write.send_flags = (visible ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0u) |
                     (copied ? static_cast<unsigned>(IBV_SEND_INLINE) : 0u);
  if (request.immediate.has_value()) write.imm_data = htobe32(*request.immediate);
  write.wr.rdma.remote_addr = request.remote.address;
  write.wr.rdma.rkey = static_cast<uint32_t>(request.remote.key);
  At(next_++) = {request.wr_id, Send::Kind::kWrite, request.signaled};
  if (request.signaled) ++signaled_;
  ++chained_;
  if (request.more && chained_ < kChain) return absl::OkStatus();
  // A failure here ends the connection, with flushed completions for writes that were not posted.
  if (absl::Status s = Flush(); !s.ok()) Fail(std::move(s));
  return absl::OkStatus();
}

absl::Status VerbsConnection::Flush() {
  if (chained_ == 0) return absl::OkStatus();
  for (int i = 0; i + 1 < chained_; ++i) chain_[i].next = &chain_[i + 1];
  chained_ = 0;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(qp_.get(), chain_.data(), &bad);
  if (error == 0) return absl::OkStatus();
  return ErrnoStatus(
      absl::StrCat("cannot post a write on queue pair ", qp_->qp_num, " of ", device_name_), error);
}

void VerbsConnection::OnWorkCompletion(const ibv_wc& completion, std::vector<Completion>* out) {
  const bool ok = completion.status == IBV_WC_SUCCESS;
  const bool flushed = completion.status == IBV_WC_WR_FLUSH_ERR;
  if (IsReceive(completion.wr_id)) {
    if (receives_ > 0) --receives_;
    if (ok && (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM ||
               (completion.wc_flags & IBV_WC_WITH_IMM) == 0)) {
      Fail(absl::InvalidArgumentError("the peer sent something other than RDMA writes"));
      out->push_back({id_, Completion::Kind::kReceive, false, false, 0, 0});
    } else {
      out->push_back(
          {id_, Completion::Kind::kReceive, ok, flushed, 0, ok ? be32toh(completion.imm_data) : 0});
    }
  } else {
    // A position is unique within the queue, so its low bits show the progress.
    const uint64_t ahead = (completion.wr_id - first_) & kPositionMask;
    if (ahead >= next_ - first_) return;
    for (const uint64_t end = first_ + ahead + 1; first_ != end; ++first_) {
      const Send& send = At(first_);
      if (send.kind == Send::Kind::kBind) {
        OnBound();
        continue;
      }
      if (send.signaled) --signaled_;
      const bool last = first_ + 1 == end;
      if (send.signaled || (last && !ok)) {
        out->push_back({id_, Completion::Kind::kSend, ok || !last, last && flushed, send.wr_id, 0});
      }
    }
  }
  // Work flushed because this side stopped the queue pair does not show the cause.
  if (ok || (flushed && (state == State::kLost || state == State::kClosed))) return;
  const std::string_view hint = CompletionHint(completion.status);
  const PathText path = Path();
  Fail(absl::UnavailableError(absl::StrCat(
      flushed ? "the queue pair went into error" : "work completion failed", ": ",
      ibv_wc_status_str(completion.status), " (status ", static_cast<int>(completion.status),
      ", vendor error ", completion.vendor_err, ") on ", path.local, ", peer ", path.remote,
      hint.empty() ? "" : "; ", std::string(hint))));
}

}  // namespace verbena::rdma
