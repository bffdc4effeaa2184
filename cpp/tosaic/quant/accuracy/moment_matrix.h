// moment_matrix: second moments as matrices of Eigen. Private to the .cpp files of this folder.
#pragma once

#include <Eigen/Core>

#include "tosaic/quant/accuracy/second_moments.h"

namespace tosaic::quant {

using Matrix = Eigen::MatrixXd;
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Eigen cuts products into blocks that suit the caches of the machine, and the blocks decide the order of
// sums. With fixed sizes, all machines with one build compute the same results.
void fix_block_sizes();

// E[x xT] of a group, symmetric.
[[nodiscard]] Matrix moment_matrix(const SecondMoments& moments, std::int64_t group);

}  // namespace tosaic::quant
