#include "worker/python/core/gil.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace verbena::python {
namespace {

bool ended = false;  // guarded by the GIL
std::atomic<int> released{0};

PyThreadState* Release() {
  // A destructor may run after the interpreter's end, without a GIL.
  if (ended || PyGILState_Check() == 0) return nullptr;
  released.fetch_add(1, std::memory_order_relaxed);  // relaxed: the GIL orders it before the end
  return PyEval_SaveThread();
}

}  // namespace

ReleasedGil::ReleasedGil() : state_(Release()) {}

ReleasedGil::~ReleasedGil() {
  if (state_ == nullptr) return;
  PyEval_RestoreThread(state_);
  released.fetch_sub(1, std::memory_order_relaxed);
}

void EndOfInterpreter() {
  ended = true;
  PyThreadState* const state = PyEval_SaveThread();
  for (int i = 0; i < 1000 && released.load(std::memory_order_relaxed) > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  PyEval_RestoreThread(state);
}

void ForgetReleased() { released.store(0, std::memory_order_relaxed); }

}  // namespace verbena::python
