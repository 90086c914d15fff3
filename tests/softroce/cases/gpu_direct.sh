#!/usr/bin/env bash
# guests: 1
# limit: 300
# needs: verbenad tests/rdma/rdma_gpu_direct_test tests/client/client_gpu_direct_test
# RDMA from and to memory of GPUs, which are imitated: by dma-buf and by peer memory; and that
# soft-RoCE itself takes no dma-buf.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"

export VERBENA_CUDA_DRIVER=$BUILD/tests/rdma/libfake_cuda.so
VERBENA_VERBS_DEVICE=$DEVICE "$BUILD/tests/rdma/rdma_gpu_direct_test" --durations yes
export VERBENA_VERBENAD=$BUILD/verbenad
"$BUILD/tests/client/client_gpu_direct_test" --durations yes
expect_no_rdma_resources
