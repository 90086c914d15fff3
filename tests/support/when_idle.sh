#!/bin/sh
# when_idle.sh PROGRAM [ARGUMENTS]: runs it on processors that nobody else wants at the moment (sched(7),
# SCHED_IDLE), beside tests that watch the clock. It yields to those of its session: between sessions
# the kernel shares evenly (autogroups).
if chrt --idle 0 true 2>/dev/null; then
  exec chrt --idle 0 "$@"
fi
exec nice -n 19 "$@"
