// A library that, as libinfinipath does, takes a signal when it is loaded.
#include <signal.h>

namespace {

[[gnu::constructor]] void TakeSignal() {
  struct sigaction action = {};
  action.sa_handler = SIG_IGN;
  (void)sigaction(SIGINT, &action, nullptr);
}

}  // namespace
