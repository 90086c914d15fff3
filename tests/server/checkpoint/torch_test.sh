#!/usr/bin/env bash
# torch_test.sh PROGRAM: its test that PyTorch and safetensors load checkpoints. 77: they are not
# installed.
set -eu
if ! missing=$("$VERBENA_PYTHON" -c 'import safetensors.torch' 2>&1); then
  echo "skipped: ${missing##*$'\n'}"
  exit 77
fi
exec "$1" --use-colour no '[.torch]'
