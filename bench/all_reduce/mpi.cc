// The limit: MPI_Allreduce of a sum between the ranks of one mpirun.
//
//     mpirun -n 2 all_reduce_mpi BYTES ROUNDS
//
// Rank 0 prints the seconds of a round, one number. Each rank rewrites its contribution before a
// round and reads the result after it.
#define OMPI_SKIP_MPICXX 1  // the C++ bindings were taken out of the standard (MPI 3.0)
#include <mpi.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/push_pull/touch.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const size_t bytes = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const int rounds = argc == 3 ? std::atoi(argv[2]) : 0;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (bytes < 4 || bytes > (size_t{1} << 32) || rounds < 1) {
    if (rank == 0) std::fprintf(stderr, "usage: mpirun -n 2 all_reduce_mpi BYTES ROUNDS\n");
    MPI_Finalize();
    return 2;
  }
  const size_t count = bytes / sizeof(float);
  std::vector<float> gradient(count);
  std::vector<float> result(count);
  volatile float sink = 0;
  double start = 0;
  constexpr int kWarmUp = 4;
  for (int i = 0; i < rounds + kWarmUp; ++i) {
    if (i == kWarmUp) {
      MPI_Barrier(MPI_COMM_WORLD);
      start = MPI_Wtime();
    }
    verbena::bench::FillGradient(gradient.data(), count, static_cast<float>(i % 7) * 0x1p-10f);
    MPI_Allreduce(gradient.data(), result.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    sink = sink + verbena::bench::ReadResult(result.data(), count);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) std::printf("%.9f\n", (MPI_Wtime() - start) / rounds);
  MPI_Finalize();
  return 0;
}
