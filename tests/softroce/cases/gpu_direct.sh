#!/usr/bin/env bash
# guests: 1
# limit: 600
# needs: verbenad verbena-train tests/rdma/rdma_gpu_direct_test tests/client/client_gpu_direct_test
# RDMA from and to memory of GPUs, which are imitated: by dma-buf and by peer memory; through the
# client; and training on GPUs, with the processor's result. Soft-RoCE itself takes no dma-buf.
# shellcheck source=tests/softroce/lib.sh
. "$SOFTROCE/lib.sh"
# shellcheck source=tests/softroce/training.sh
. "$SOFTROCE/training.sh"

export VERBENA_CUDA_DRIVER=$BUILD/tests/rdma/libfake_cuda.so
VERBENA_VERBS_DEVICE=$DEVICE "$BUILD/tests/rdma/rdma_gpu_direct_test" --durations yes
export VERBENA_VERBENAD=$BUILD/verbenad
"$BUILD/tests/client/client_gpu_direct_test" --durations yes
expect_no_rdma_resources

note "training"
train_batch=64
small=(--hidden 16 --embedding 4)
start_cluster verbs 127.0.0.1
coordinator=$(field coordinator address)
train "$coordinator" verbs host.json "${small[@]}"
under=(env LD_PRELOAD="$BUILD/tests/rdma/libfake_gpu_direct.so"
  VERBENA_CUDA_DRIVER="$BUILD/tests/gpu/libfake_cuda_kernels.so"
  VERBENA_CUBLAS="$BUILD/tests/gpu/libfake_cublas.so")
train "$coordinator" verbs gpu.json "${small[@]}" --device cuda --rdma-gpu-direct required
under=(env VERBENA_CUDA_DRIVER="$BUILD/tests/gpu/libfake_cuda_kernels.so"
  VERBENA_CUBLAS="$BUILD/tests/gpu/libfake_cublas.so")
train_start "$coordinator" verbs none.json "${small[@]}" --device cuda --rdma-gpu-direct required
train_fails
assert_says train.log "rdma.gpu_direct is required"
assert_says train.log "the kernel's driver of $DEVICE takes no dma-buf"
under=()
stop_cluster
expect_no_rdma_resources
assert_equal "transport" "$(result gpu.json transport)" verbs
assert "bits per byte, GPU and host" awk -v a="$(result host.json bits_per_byte)" \
  -v b="$(result gpu.json bits_per_byte)" 'BEGIN { exit !(a > 1 && (a - b) ^ 2 < (1e-4 * a) ^ 2) }'
