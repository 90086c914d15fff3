// The data path of a connection: posting and completions.
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/ofi/ofi_connection.h"
#include "rdma/ofi/ofi_provider.h"

namespace verbena::rdma {
namespace {

constexpr size_t kBatch = 32;
constexpr size_t kMostReached = 4096;  // keys that are remembered; dropping them costs
                                       // confirmations
constexpr uint32_t kNumberMask = 0x7fffffff;

// Completion data: the immediate in the lower half. The upper half has the write's number and
// whether it has an immediate, XORed with the receiver's secret.
uint64_t PackData(uint32_t secret, uint64_t number, bool has_immediate, uint32_t immediate) {
  const uint32_t head =
      (static_cast<uint32_t>(number) & kNumberMask) << 1 | (has_immediate ? 1U : 0U);
  return uint64_t{head ^ secret} << 32 | immediate;
}

}  // namespace

// ---- posting ------------------------------------------------------------------------------------

absl::Status OfiConnection::PostReceives(uint32_t count) {
  if (ep_ == nullptr) {
    return absl::FailedPreconditionError("ofi: the connection takes no receives");
  }
  const uint64_t outstanding = posted_ - consumed_;
  if (outstanding + count > limits_.receive_depth) {
    return absl::ResourceExhaustedError(absl::StrCat("ofi: ", outstanding, " receives posted, ",
                                                     count, " more exceed the depth of ",
                                                     limits_.receive_depth));
  }
  posted_ += count;
  return absl::OkStatus();
}

// Completes an operation whose pieces and target are set, and appends it to the queue.
void OfiConnection::Append(Op* op, bool has_immediate, uint32_t immediate) {
  op->data = PackData(peer_secret_, next_, has_immediate, immediate);
  op->has_immediate = has_immediate;
  op->done = false;
  // An empty write still needs a memory address, which the provider checks.
  if (op->bytes == 0) op->remote = peer_doorbell_;
  ++next_;
}

void OfiConnection::AppendJoin() {
  Op& op = At(next_);
  op.piece_count = 0;
  op.bytes = 0;
  op.internal = true;
  op.signaled = false;
  Append(&op, false, 0);
}

absl::Status OfiConnection::PostWrite(const WriteRequest& request) {
  if (state_ != State::kEstablished) {
    return absl::FailedPreconditionError("ofi: the connection is not established");
  }
  if (request.segments.size() > kMaxSegments) {
    return absl::InvalidArgumentError("ofi: too many segments");
  }
  if (next_ - first_ >= limits_.send_depth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("ofi: the send queue of ", limits_.send_depth, " is full"));
  }
  Op& op = At(next_);
  op.piece_count = 0;
  op.bytes = 0;
  for (const Segment& segment : request.segments) {
    if (!WithinBlock(segment)) {
      return absl::InvalidArgumentError("ofi: a segment lies outside its block");
    }
    if (segment.bytes == 0) continue;
    // libfabric takes sources as void*, but only reads them.
    op.pieces[op.piece_count++] = {const_cast<std::byte*>(segment.data), segment.bytes};
    op.bytes += segment.bytes;
  }
  op.remote = request.remote;
  op.wr_id = request.wr_id;
  op.internal = false;
  op.signaled = request.signaled;
  Append(&op, request.immediate.has_value(), request.immediate.value_or(0));
  if (issued_ + 1 == next_) Issue();
  return absl::OkStatus();
}

// Passes writes to libfabric in order, as far as it has room.
void OfiConnection::Issue() {
  while (issued_ != next_) {
    Op& op = At(issued_);
    iovec nothing = {nullptr, 0};
    const uint64_t base = shared_->virtual_addresses ? 0 : kOfiOffsetBase;
    fi_rma_iov to = {op.remote.address - base, op.bytes, op.remote.key};
    void* descriptors[kMaxSegments] = {};
    fi_msg_rma message = {};
    message.msg_iov = op.piece_count == 0 ? &nothing : op.pieces.data();
    message.desc = descriptors;
    message.iov_count = op.piece_count == 0 ? 1 : op.piece_count;
    message.addr = peer_;
    message.rma_iov = &to;
    message.rma_iov_count = 1;
    message.context = &op.context;
    message.data = op.data;
    op.confirmed = !IsReached(op);
    const uint64_t when = op.confirmed ? FI_DELIVERY_COMPLETE : 0;
    const ssize_t result =
        fi_writemsg(ep_.get(), &message, FI_REMOTE_CQ_DATA | FI_COMPLETION | when);
    if (result == -FI_EAGAIN) return;
    if (result != 0) {
      failed_ = issued_;
      return End(FabricError(absl::StatusCode::kUnavailable, "cannot write", result), Why::kError);
    }
    ++issued_;
  }
}

// An empty write is a probe of the peer: it is confirmed too.
bool OfiConnection::IsReached(const Op& op) {
  if (op.piece_count == 0 && !op.has_immediate) return false;
  if (last_reached_ == nullptr || op.remote.key != last_key_) {
    const auto it = reached_.find(op.remote.key);
    if (it == reached_.end()) return false;
    last_key_ = op.remote.key;
    last_reached_ = &it->second;
  }
  const uint64_t begin = op.remote.address;
  return begin >= last_reached_->begin && begin <= last_reached_->end &&
         op.bytes <= last_reached_->end - begin;
}

// The memory exposed under a key is contiguous: all addresses between two that writes have reached
// can be reached too.
void OfiConnection::AddReached(const Op& op) {
  if (reached_.size() >= kMostReached) reached_.clear();
  last_reached_ = nullptr;  // the entry may have moved
  const uint64_t begin = op.remote.address;
  const auto [it, added] = reached_.try_emplace(op.remote.key, Reached{begin, begin + op.bytes});
  if (added) return;
  it->second.begin = std::min(it->second.begin, begin);
  it->second.end = std::max(it->second.end, begin + op.bytes);
}

// ---- completions --------------------------------------------------------------------------------

bool OfiConnection::Drive() {
  if (!active()) return false;
  absl::Status failure = ReadQueue();
  if (!failure.ok()) {
    End(KnownReason(std::move(failure)), Why::kError);
    return true;
  }
  const bool waited = issued_ != next_;
  if (waited) Issue();
  return read_ > 0 || (waited && issued_ == next_);
}

// Takes one batch of completions; read_ is their number.
absl::Status OfiConnection::ReadQueue() {
  fi_cq_data_entry entries[kBatch];
  absl::Status failure;
  const ssize_t count = fi_cq_read(cq_.get(), entries, kBatch);
  read_ = count > 0 ? static_cast<size_t>(count) : 0;
  for (size_t i = 0; i < read_ && failure.ok(); ++i) {
    const fi_cq_data_entry& entry = entries[i];
    if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
      failure = OnArrived(entry.data);
    } else {
      OnDone(entry.op_context);
    }
  }
  if (count == -FI_EAVAIL) {
    failure = OnQueueError();
  } else if (count < 0 && count != -FI_EAGAIN) {
    failure = FabricError(absl::StatusCode::kUnavailable, "the completion queue", count);
  }
  Retire();
  return failure;
}

// The reason in a message of the peer is nearer to the cause than the local failure.
absl::Status OfiConnection::KnownReason(absl::Status failure) {
  OfiMessage message;
  absl::Status why;
  switch (socket_.Receive(&message, &why)) {
    case OfiSocket::Received::kGone:
      return why;
    case OfiSocket::Received::kMessage:
      if (message.type != OfiMessageType::kError) return failure;
      return absl::UnavailableError(absl::StrCat("the peer reports: ", message.text));
    default:
      return failure;
  }
}

absl::Status OfiConnection::OnArrived(uint64_t data) {
  const uint32_t head = static_cast<uint32_t>(data >> 32) ^ secret_;
  if (head >> 1 != (arrived_ & kNumberMask)) {
    return absl::DataLossError(
        absl::StrCat("ofi: a write out of order: one was lost with its connection, or this is not "
                     "the peer's (expected write ",
                     arrived_ & kNumberMask, ")"));
  }
  ++arrived_;
  if (state_ == State::kJoining) {
    if (!initiator_) AppendJoin();
    Established();
    return absl::OkStatus();
  }
  if ((head & 1) == 0) return absl::OkStatus();
  if (consumed_ == posted_) {
    return absl::InternalError("ofi: the peer wrote with no receive posted (receiver not ready)");
  }
  ++consumed_;
  Report(Completion::Kind::kReceive, true, false, 0, static_cast<uint32_t>(data));
  return absl::OkStatus();
}

void OfiConnection::OnDone(const void* context) {
  // The context is the first member.
  static_assert(offsetof(Op, context) == 0);
  Op* const op = static_cast<Op*>(const_cast<void*>(context));
  if (op == nullptr) return;
  op->done = true;
  if (op->confirmed) AddReached(*op);
}

absl::Status OfiConnection::OnQueueError() {
  fi_cq_err_entry error = {};
  const ssize_t count = fi_cq_readerr(cq_.get(), &error, 0);
  if (count < 0) {
    return FabricError(absl::StatusCode::kUnavailable, "the completion queue", count);
  }
  if (error.op_context != nullptr) {
    const auto index = static_cast<uint64_t>(static_cast<const Op*>(error.op_context) - &ops_[0]);
    for (uint64_t number = first_; number != issued_; ++number) {
      if ((number & ops_mask_) == index) failed_ = number;
    }
  }
  return FabricError(
      absl::StatusCode::kUnavailable,
      "a write failed: outside the memory that the peer exposed, or the connection to it broke",
      error.err);
}

void OfiConnection::Retire() {
  for (; first_ != issued_ && At(first_).done; ++first_) {
    const Op& op = At(first_);
    if (op.signaled) Report(Completion::Kind::kSend, true, false, op.wr_id, 0);
  }
}

void OfiConnection::FlushWrites() {
  for (; first_ != next_; ++first_) {
    const Op& op = At(first_);
    if (op.internal) continue;
    Report(Completion::Kind::kSend, false, first_ != failed_, op.wr_id, 0);
  }
  issued_ = next_;
}

void OfiConnection::Report(Completion::Kind kind, bool ok, bool flushed, uint64_t wr_id,
                           uint32_t immediate) {
  Completion completion;
  completion.connection = id_;
  completion.kind = kind;
  completion.ok = ok;
  completion.flushed = flushed;
  completion.wr_id = wr_id;
  completion.immediate = immediate;
  if (kind == Completion::Kind::kReceive && ok && !reported_) {
    held_.push_back(completion);  // transport.h, invariant 7
  } else {
    shared_->completions.push(completion);
  }
}

}  // namespace verbena::rdma
