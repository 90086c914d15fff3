// Handles: regions, tables and tickets.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client_impl.h"
#include "proto/spec/table_spec.h"

namespace verbena {

using client::ClientCore;

std::byte* Region::data() const { return state_ == nullptr ? nullptr : state_->block->data(); }
size_t Region::size() const { return state_ == nullptr ? 0 : state_->block->size(); }
MemoryKind Region::kind() const {
  return state_ == nullptr ? MemoryKind::kHost : state_->block->kind();
}
bool Region::allocated() const { return state_ != nullptr && state_->block->allocated(); }

const std::string& Table::name() const { return spec().name(); }
uint32_t Table::id() const { return state_ == nullptr ? 0 : state_->info.id(); }
const v1::TableSpec& Table::spec() const {
  return state_ == nullptr ? v1::TableSpec::default_instance() : state_->info.spec();
}
bool Table::embedding() const { return dim() > 0; }
uint32_t Table::dim() const { return spec().dim(); }
uint64_t Table::elements() const { return state_ == nullptr ? 0 : state_->layout.elements; }
v1::DType Table::dtype() const {
  return state_ == nullptr ? v1::DTYPE_UNSPECIFIED : spec().dtype();
}
v1::DType Table::gradient_dtype() const {
  return state_ == nullptr ? v1::DTYPE_UNSPECIFIED
                           : static_cast<v1::DType>(GradientType(state_->info.spec()));
}
size_t Table::element_bytes() const {
  return state_ == nullptr ? 0 : state_->layout.parameter_bytes;
}
size_t Table::gradient_element_bytes() const {
  return state_ == nullptr ? 0 : state_->layout.gradient_bytes;
}
size_t Table::bytes() const { return elements() * element_bytes(); }
size_t Table::gradient_bytes() const { return elements() * gradient_element_bytes(); }
uint32_t Table::chunk_elements() const {
  return state_ == nullptr || embedding() ? 0 : state_->layout.chunk_elements;
}

std::vector<std::string> Table::state_arrays() const {
  if (state_ == nullptr) return {};
  const auto& names = state_->info.optimizer_state();
  return {names.begin(), names.end()};
}

absl::Status Ticket::Wait() { return Wait(absl::InfiniteDuration()); }

absl::Status Ticket::Wait(absl::Duration at_most) {
  if (state_ == nullptr) return absl::FailedPreconditionError("an empty ticket");
  State& s = *state_;
  if (!s.Over()) {
    s.runtime->WaitUntil([&] { return s.done.load(std::memory_order_relaxed); },
                         After(s.runtime->Now(), at_most));
  }
  if (s.Over()) return s.Result();
  return absl::DeadlineExceededError(
      absl::StrCat("still running after ", absl::FormatDuration(at_most),
                   "; the operation goes on until its own deadline"));
}

bool Ticket::Done() const { return state_ == nullptr || state_->Over(); }

absl::Status Ticket::status() const {
  if (state_ == nullptr) return absl::FailedPreconditionError("an empty ticket");
  if (!Done()) return absl::FailedPreconditionError("the operation is not done yet");
  return state_->Result();
}

absl::Duration Ticket::Elapsed() const {
  if (state_ == nullptr) return absl::ZeroDuration();
  const bool done = state_->done.load(std::memory_order_acquire);
  return absl::Nanoseconds((done ? state_->ended_ns : state_->runtime->Now()) - state_->started_ns);
}

void Ticket::Cancel() {
  if (Done()) return;
  // The wait runs the core, which ends the operation at once.
  state_->runtime->Run([this](ClientCore& core) { core.Cancel(state_->id); });
  state_->runtime->WaitUntil([this] { return Done(); }, state_->runtime->Now() + 1'000'000'000);
}

bool Ticket::Started() const { return state_ != nullptr && state_->started; }

bool Ticket::BufferReleased() const {
  if (state_ == nullptr || !state_->started) return true;
  bool released = true;
  state_->runtime->Run([&](ClientCore& core) { released = core.BufferReleased(state_->id); });
  return released;
}

void Ticket::OnDone(std::function<void(absl::Status)> done) {
  if (state_ == nullptr) return done(absl::FailedPreconditionError("an empty ticket"));
  bool later = false;
  state_->runtime->Run([&](ClientCore&) {
    if (state_->done.load(std::memory_order_relaxed)) return;
    later = true;
    if (state_->callback == nullptr) {
      state_->callback = std::move(done);
      state_->runtime->ExpectCallback();
      return;
    }
    state_->callback = [first = std::move(state_->callback),
                        second = std::move(done)](absl::Status status) {
      first(status);
      second(std::move(status));
    };
  });
  if (!later) done(state_->Result());
}

}  // namespace verbena
