// Operations of the library and their handles in Python.
//
// An operation pins the memory that it uses until the library has released it: the handle, the
// client's list of operations in flight, or both keep it.
//
// **Thread safety**: the caller holds the GIL, except for CompletionQueue.
#ifndef VERBENA_WORKER_PYTHON_CORE_OPERATION_H_
#define VERBENA_WORKER_PYTHON_CORE_OPERATION_H_

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/python/core/region.h"
#include "worker/python/core/status.h"

namespace verbena::python {

// Memory in use: the region, and the storage that owns its bytes, which is dropped after it.
struct Pin {
  py::object storage;
  std::shared_ptr<Region> region;
};

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  // `result` is returned by Wait().
  Operation(verbena_ticket* ticket, std::vector<Pin> pins, py::object result)
      : ticket_(ticket), pins_(std::move(pins)), result_(std::move(result)) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation();

  bool IsCompleted() const { return verbena_ticket_done(ticket_) != 0; }
  // Waits without the GIL, and looks for signals meanwhile. Raises the operation's error, or
  // DeadlineExceededError when `timeout` seconds have passed.
  py::object Wait(const py::object& timeout);
  // Seconds from the call to the end, or until now.
  double Elapsed() const { return static_cast<double>(verbena_ticket_elapsed_ns(ticket_)) * 1e-9; }
  void Cancel();
  // The chunks that an ended pull of state has read.
  py::dict StateVersions() const;
  // The exception with which the ended operation failed; None: it did not.
  py::object Exception() const;
  // Drops the pins if the library has released the memory; whether it has.
  bool Release();
  // Drops them after the library has closed the client: nothing accesses the memory.
  void ReleaseAll();
  // Calls `done(handle)` from the thread of completions.
  void AddDoneCallback(py::object done);
  void RunDoneCallbacks();

 private:
  Outcome Result() const;

  verbena_ticket* const ticket_;
  std::vector<Pin> pins_;
  py::object result_;
  bool announced_ = false;  // it is, or will be, in the queue
  std::vector<py::object> callbacks_;
};

// Operations that have ended and have callbacks. The library's threads never wait for the GIL: they
// put an operation here, and the Python thread of verbena._completions takes it.
class CompletionQueue {
 public:
  // The queue of this process: a forked child has an empty one.
  static CompletionQueue& Get();
  static void StartAfterFork();

  // Any thread, without the GIL.
  void Put(std::shared_ptr<Operation> operation);
  // Waits without the GIL for an operation; null after Stop().
  std::shared_ptr<Operation> Take();
  void Stop();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> ended_;
  bool stopped_ = false;
};

void DefineOperation(py::module_& module);

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_OPERATION_H_
