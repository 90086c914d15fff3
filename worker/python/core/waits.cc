#include "worker/python/core/waits.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace verbena::python {
namespace {

// Calls that Ctrl-C gave up and that still run in the library. When the process ends meanwhile,
// destroying the library's static objects would crash them: then it ends without that.
std::atomic<int> given_up{0};

struct LongCall {
  std::function<verbena_status()> call;
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  bool abandoned = false;
  Outcome outcome;

  void Run() {
    Outcome result;
    result.code = call();
    if (result.code != VERBENA_OK) result.text = verbena_last_error();
    call = nullptr;  // the objects that it owns are freed on this thread
    const std::lock_guard<std::mutex> lock(mutex);
    if (abandoned) given_up.fetch_sub(1);
    outcome = std::move(result);
    over = true;
    ended.notify_all();
  }
  bool Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    return ended.wait_for(lock, std::chrono::milliseconds(kSliceMs), [this] { return over; });
  }
};

void EndAtOnce(int status, void*) {
  if (given_up.load() == 0) return;
  std::fflush(nullptr);
  _exit(status);
}

void GiveUp(const std::shared_ptr<LongCall>& call) {
  static const int registered = on_exit(EndAtOnce, nullptr);  // before static objects end
  (void)registered;
  const std::lock_guard<std::mutex> lock(call->mutex);
  call->abandoned = !call->over;
  if (call->abandoned) given_up.fetch_add(1);
}

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
    if (PyErr_CheckSignals() != 0) {
      GiveUp(state);
      throw py::error_already_set();
    }
  }
}

}  // namespace verbena::python
