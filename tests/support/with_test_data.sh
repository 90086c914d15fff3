#!/bin/sh
# Runs a test that needs the folder named by VERBENA_TEST_DATA; 77 means for ctest that it was skipped.
if [ -z "${VERBENA_TEST_DATA:-}" ]; then
  echo "skipped: VERBENA_TEST_DATA is not set"
  exit 77
fi
exec "$@"
