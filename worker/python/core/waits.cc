#include "worker/python/core/waits.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace verbena::python {
namespace {

struct LongCall {
  std::function<verbena_status()> call;
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  Outcome outcome;

  void Run() {
    Outcome result;
    result.code = call();
    if (result.code != VERBENA_OK) result.text = verbena_last_error();
    call = nullptr;  // what it owns is freed on this thread
    const std::lock_guard<std::mutex> lock(mutex);
    outcome = std::move(result);
    over = true;
    ended.notify_all();
  }
  bool Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    return ended.wait_for(lock, std::chrono::milliseconds(kSliceMs), [this] { return over; });
  }
};

bool OnMainThread() {
  const py::module_ threading = py::module_::import("threading");
  const py::object ident = threading.attr("main_thread")().attr("ident");
  return ident.equal(threading.attr("get_ident")());
}

}  // namespace

Outcome Interruptible(std::function<verbena_status()> call) {
  // Signals interrupt the main thread alone.
  if (!OnMainThread()) return WithoutGil([&] { return call(); });
  const auto state = std::make_shared<LongCall>();
  state->call = std::move(call);
  std::thread([state] { state->Run(); }).detach();
  while (true) {
    bool over = false;
    {
      const ReleasedGil released;
      over = state->Wait();
    }
    if (over) return state->outcome;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

}  // namespace verbena::python
