// Compiled once per instruction set, each time with another VERBENA_KERNELS and another name for
// Eigen's namespace: see worker/CMakeLists.txt and the invariant in the header.
#include "worker/models/text_kernels.h"

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

namespace verbena::worker {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MapIn = Eigen::Map<const Matrix>;
using Map = Eigen::Map<Matrix>;
using RowIn = Eigen::Map<const Eigen::RowVectorXf>;
using Row = Eigen::Map<Eigen::RowVectorXf>;

void Forward(const TextShape& shape, const TextParameters& parameters,
             const TextWorkspace& workspace, const uint8_t* contexts, const uint8_t* targets,
             int rows, float* losses) {
  const int width = shape.embedding;
  Map x(workspace.x, rows, shape.input());
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < shape.context; ++k) {
      const float* from = parameters.embedding + contexts[r * shape.context + k] * width;
      Row(&x(r, k * width), width) = RowIn(from, width);
    }
  }
  Map h(workspace.h, rows, shape.hidden);
  h.noalias() = x * MapIn(parameters.w1, shape.input(), shape.hidden);
  h.rowwise() += RowIn(parameters.c1, shape.hidden);
  h = h.array().tanh();
  if (workspace.mask != nullptr) h.array() *= MapIn(workspace.mask, rows, shape.hidden).array();
  Map p(workspace.p, rows, kTextClasses);
  p.noalias() = h * MapIn(parameters.w2, shape.hidden, kTextClasses);
  for (int r = 0; r < rows; ++r) {
    const int last = contexts[r * shape.context + shape.context - 1];
    auto row = p.row(r);
    row += RowIn(parameters.c2, kTextClasses);
    row += RowIn(parameters.skip + last * kTextClasses, kTextClasses);
    if (workspace.add != nullptr) row += RowIn(workspace.add + r * kTextClasses, kTextClasses);
    const float greatest = row.maxCoeff();
    const float target = row(targets[r]) - greatest;
    row = (row.array() - greatest).exp();
    const float sum = row.sum();
    row *= 1 / sum;
    losses[r] = Eigen::numext::log(sum) - target;
  }
}

void Backward(const TextShape& shape, const TextParameters& parameters,
              const TextWorkspace& workspace, const uint8_t* contexts, const uint8_t* targets,
              int rows, float scale, const TextGradient& gradient) {
  const int width = shape.embedding;
  Map p(workspace.p, rows, kTextClasses);
  for (int r = 0; r < rows; ++r) {
    p(r, targets[r]) -= 1;
    p.row(r) *= scale;
    const int last = contexts[r * shape.context + shape.context - 1];
    Row(gradient.skip + last * kTextClasses, kTextClasses) += p.row(r);
  }
  Map h(workspace.h, rows, shape.hidden);
  Row(gradient.c2, kTextClasses) += p.colwise().sum();
  Map(gradient.w2, shape.hidden, kTextClasses).noalias() += h.transpose() * p;

  Map dh(workspace.dh, rows, shape.hidden);
  dh.noalias() = p * MapIn(parameters.w2, shape.hidden, kTextClasses).transpose();
  if (workspace.mask != nullptr) {
    // h = mask * tanh: d h = mask * (1 - tanh^2) = mask - h^2 / mask, zero where the mask is zero.
    const auto mask = MapIn(workspace.mask, rows, shape.hidden).array();
    dh.array() *= (mask > 0).select(mask - h.array().square() / mask.max(1e-6f), 0.0f);
  } else {
    dh.array() *= 1 - h.array().square();
  }
  Map x(workspace.x, rows, shape.input());
  Row(gradient.c1, shape.hidden) += dh.colwise().sum();
  Map(gradient.w1, shape.input(), shape.hidden).noalias() += x.transpose() * dh;

  Map dx(workspace.dx, rows, shape.input());
  dx.noalias() = dh * MapIn(parameters.w1, shape.input(), shape.hidden).transpose();
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < shape.context; ++k) {
      float* to = gradient.embedding + contexts[r * shape.context + k] * width;
      Row(to, width) += RowIn(&dx(r, k * width), width);
    }
  }
}

}  // namespace

extern const TextKernels VERBENA_KERNELS;
const TextKernels VERBENA_KERNELS = {VERBENA_KERNELS_NAME, &Forward, &Backward};

}  // namespace verbena::worker
