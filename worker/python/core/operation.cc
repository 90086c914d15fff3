#include "worker/python/core/operation.h"

#include <algorithm>
#include <chrono>

#include "worker/python/core/waits.h"

namespace verbena::python {
namespace {

using Clock = std::chrono::steady_clock;

// The library's callback, on one of its threads.
void OnDone(verbena_status, const char*, void* user) {
  auto* const operation = static_cast<std::shared_ptr<Operation>*>(user);
  CompletionQueue::Get().Put(std::move(*operation));
  delete operation;  // empty: the queue has the reference
}

}  // namespace

Operation::~Operation() { verbena_ticket_free(ticket_); }

Outcome Operation::Result() const {
  Outcome outcome;
  outcome.code = verbena_ticket_status(ticket_);
  if (outcome.code != VERBENA_OK) outcome.text = verbena_last_error();
  return outcome;
}

py::object Operation::Wait(const py::object& timeout) {
  const int64_t limit_ms = Milliseconds(timeout);
  const bool limited = limit_ms != VERBENA_TIMEOUT_DEFAULT;
  const auto end = Clock::now() + std::chrono::milliseconds(limited ? limit_ms : 0);
  while (!IsCompleted()) {
    int64_t slice_ms = kSliceMs;
    if (limited) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
      if (left <= 0) {
        Check({VERBENA_DEADLINE_EXCEEDED, "wait: the operation is still running after " +
                                              py::str(timeout).cast<std::string>() + " s"});
      }
      slice_ms = std::min<int64_t>(slice_ms, left);
    }
    WithoutGil([&] { return verbena_ticket_wait(ticket_, slice_ms); });
    if (!IsCompleted() && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  Release();
  Check(Result());
  return result_;
}

void Operation::Cancel() {
  Check(WithoutGil([this] { return verbena_ticket_cancel(ticket_); }));
}

py::object Operation::Exception() const {
  const Outcome outcome = Result();
  return outcome.code == VERBENA_OK ? py::none() : ErrorOf(outcome);
}

py::dict Operation::StateVersions() const {
  verbena_state_versions versions = {};
  versions.struct_size = sizeof(versions);
  Outcome outcome;
  outcome.code = verbena_ticket_state_versions(ticket_, &versions);
  if (outcome.code != VERBENA_OK) outcome.text = verbena_last_error();
  Check(outcome);
  py::dict all;
  all["least_version"] = versions.least_version;
  all["greatest_version"] = versions.greatest_version;
  all["least_applies"] = versions.least_applies;
  all["greatest_applies"] = versions.greatest_applies;
  return all;
}

bool Operation::Release() {
  if (!IsCompleted() || verbena_ticket_buffer_released(ticket_) == 0) return false;
  ReleaseAll();
  return true;
}

void Operation::ReleaseAll() {
  // Dropping a reference may run Python code that calls this again.
  const std::vector<Pin> last = std::move(pins_);
  pins_.clear();
}

void Operation::AddDoneCallback(py::object done) {
  callbacks_.push_back(std::move(done));
  if (announced_) return;
  announced_ = true;
  py::module_::import("verbena._completions").attr("start")();
  auto* const self = new std::shared_ptr<Operation>(shared_from_this());
  Check(WithoutGil([&] { return verbena_ticket_on_done(ticket_, OnDone, self); }));
}

void Operation::RunDoneCallbacks() {
  announced_ = false;
  std::vector<py::object> callbacks;
  callbacks.swap(callbacks_);
  const py::object self = py::cast(shared_from_this());
  for (const py::object& callback : callbacks) {
    try {
      callback(self);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(callback);
    }
  }
}

// ---- CompletionQueue ----------------------------------------------------------------------------

namespace {
CompletionQueue* the_queue = new CompletionQueue;
}

CompletionQueue& CompletionQueue::Get() { return *the_queue; }

// The old queue's lock may be held by a thread that the child does not have.
void CompletionQueue::StartAfterFork() { the_queue = new CompletionQueue; }

void CompletionQueue::Put(std::shared_ptr<Operation> operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_.push_back(std::move(operation));
  changed_.notify_one();
}

std::shared_ptr<Operation> CompletionQueue::Take() {
  const ReleasedGil released;
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stopped_ || !ended_.empty(); });
  if (ended_.empty()) return nullptr;
  auto operation = std::move(ended_.front());
  ended_.pop_front();
  return operation;
}

void CompletionQueue::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

// ---- Python -------------------------------------------------------------------------------------

void DefineOperation(py::module_& module) {
  py::class_<Operation, std::shared_ptr<Operation>>(module, "Handle", R"(
An operation that was started, like torch.distributed.Work.

It continues if the handle is dropped. `await handle` waits in asyncio.)")
      .def("wait", &Operation::Wait, py::arg("timeout") = py::none(), R"(
Waits until the operation has ended, and returns its destination; None for a push.

timeout: seconds; None: the operation's own deadline. After it the operation goes on.

Raises verbena.Error: the operation's error, or DeadlineExceededError (a TimeoutError).)")
      .def("is_completed", &Operation::IsCompleted,
           "Whether the operation has ended, with or without an error.")
      .def("exception", &Operation::Exception, R"(
The error of the ended operation; None if it succeeded.

Before the end: a FailedPreconditionError.)")
      .def_property_readonly("elapsed", &Operation::Elapsed, R"(
Seconds from the call to the operation's end, or until now.)")
      .def("cancel", &Operation::Cancel, R"(
Ends the operation with CancelledError unless it has ended.)")
      .def("state_versions", &Operation::StateVersions, R"(
Versions and counts of applies of the chunks that an ended Client.pull_state() has read.

A dict of least_version, greatest_version, least_applies and greatest_applies.)")
      .def("add_done_callback", &Operation::AddDoneCallback, py::arg("callback"), R"(
Calls `callback(handle)` when the operation has ended, on the thread "verbena-completions".

The callback must not block; it may start operations.)")
      .def(
          "get_future",
          [](const std::shared_ptr<Operation>& self) {
            return py::module_::import("verbena._completions").attr("future_of")(self);
          },
          R"(
A concurrent.futures.Future with the result of wait(). Cancelling it cancels the operation.)")
      .def(
          "__await__",
          [](const std::shared_ptr<Operation>& self) {
            return py::module_::import("verbena._completions").attr("await_handle")(self);
          },
          "Waits in asyncio; the result is that of wait().")
      .def("__repr__",
           [](const Operation& self) {
             if (!self.IsCompleted()) return py::str("<verbena.Handle running>");
             const py::object error = self.Exception();
             if (error.is_none()) return py::str("<verbena.Handle completed>");
             return py::str("<verbena.Handle failed: {!r}>").format(error);
           })
      .def("__reduce__", [](const Operation&) -> py::object {
        throw py::type_error(
            "a verbena.Handle cannot be pickled or copied: it is of this process's client; pickle "
            "the result of wait()");
      });
  module.def(
      "run_completions",
      [] {
        while (const auto operation = CompletionQueue::Get().Take()) operation->RunDoneCallbacks();
      },
      "Runs callbacks of ended operations until stop_completions().");
  module.def(
      "stop_completions", [] { CompletionQueue::Get().Stop(); }, "Ends run_completions().");
  module.def(
      "after_fork",
      [] {
        CompletionQueue::StartAfterFork();
        ForgetReleased();
      },
      "Resets a forked child's state.");
}

}  // namespace verbena::python
