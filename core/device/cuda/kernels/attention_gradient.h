#pragma once

#include "core/device/cuda/kernels/attention_tiles.h"

// The gradient of attention. keep_ij is dropout's factor. Dao et al. 2022, arXiv:2205.14135, appendix B.4:
//   P_ij = exp(score_ij - lse_i)     dP_ij = keep_ij (dO_i . v_j)     D_i = dO_i . O_i
//   dS_ij = P_ij (dP_ij - D_i) scale
//   dq_i = sum over j of dS_ij k_j     dk_j = sum over i of dS_ij q_i     dv_j = sum over i of keep_ij P_ij dO_i
// One kernel loops over the queries for each tile of keys. Another loops over the keys for each tile of queries. Both
// compute the scores again. So one thread sums each result, in a fixed order, without atomic additions.

namespace shardrun::device::cuda::attention {

/// The tensors that all kernels of the gradient read.
struct GradientTensors : Tensors {
  Reals dout;       ///< laid out as `out`
  float* dout_out;  ///< D_i, laid out as log-sum-exp

  [[nodiscard]] SHARDRUN_ON_DEVICE HeadRows gradient_of_out() const {
    HeadRows rows = out;
    rows.data = dout;
    return rows;
  }
};

struct Gradients {
  HeadRows dq;
  HeadRows dk;
  HeadRows dv;
};

/// Launches the kernels of dq, dk and dv, for heads of any width and type (attention_gradient_tiles.cu).
/// REQUIRES: of.dout_out has been computed.
void launch_gradient_tiles(const KernelCall& call, const GradientTensors& of, const Gradients& to);
/// The same for bfloat16 heads, with tensor cores (attention_gradient_matrices.cu). REQUIRES: all tensors except
/// log-sum-exp are bfloat16, and heads are at most `widest` wide.
void launch_gradient_matrices(const KernelCall& call, const GradientTensors& of, const Gradients& to);

template <typename OfQueries, typename OfKeys>
void launch_gradients(const KernelCall& call, int threads, const OfQueries& of_queries, const OfKeys& of_keys) {
  launch(call, of_queries.blocks(), threads, OfQueries::shared(), of_queries);
  launch(call, of_keys.blocks(), threads, OfKeys::shared(), of_keys);
}

}  // namespace shardrun::device::cuda::attention
