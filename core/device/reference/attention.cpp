#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "core/device/reference/random.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
/// Rows of a matrix in memory, with other matrices' rows between them.
using Rows = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

enum Part : std::int64_t { query, key, value };

/// One head of one sample: its matrices [T, D] within qkv [B, T, 3, H, D] and out [B, T, H, D], its row of lse [B, H,
/// T].
struct Head {
  /// `number`: of the B H heads.
  Head(const KernelCall& call, std::int64_t number)
      : length(call.inputs[0].shape[1]),
        heads(call.inputs[0].shape[3]),
        width(call.inputs[0].shape[4]),
        b(number / heads),
        h(number % heads),
        sample(call.scalars.first_sample + call.inputs[0].origin[0] + b),
        first_row((call.inputs[0].origin[3] + h) * length),
        dropout(call.scalars, call.attributes.text("stream"), call.attributes.real("dropout")) {}

  [[nodiscard]] Rows of_qkv(const TensorView& qkv, Part part) const {
    return {reals(qkv) + (b * length * 3 + part) * heads * width + h * width, length, width,
            Eigen::OuterStride<>(3 * heads * width)};
  }
  [[nodiscard]] Rows of_out(const TensorView& out) const {
    return {reals(out) + b * length * heads * width + h * width, length, width, Eigen::OuterStride<>(heads * width)};
  }
  [[nodiscard]] double* of_lse(const TensorView& lse) const { return reals(lse) + (b * heads + h) * length; }

  /// Dropout's factor for the probability of key j for query i.
  [[nodiscard]] double keep(std::int64_t i, std::int64_t j) const {
    return dropout.factor(sample, (first_row + i) * length + j);
  }

  std::int64_t length;
  std::int64_t heads;
  std::int64_t width;
  std::int64_t b;
  std::int64_t h;
  std::int64_t sample;
  std::int64_t first_row;
  Dropout dropout;
};

/// q_i . k_j / sqrt(D) for all keys j that query i sees.
Vector scores(const Head& head, const TensorView& qkv, std::int64_t i) {
  return head.of_qkv(qkv, key).topRows(i + 1) * head.of_qkv(qkv, query).row(i).transpose() /
         std::sqrt(static_cast<double>(head.width));
}

/// Causal softmax(Q K^T / sqrt(D)) V. Vaswani et al. 2017, arXiv:1706.03762, equation 1 and section 3.2.3, with dropout
/// on the probabilities; lse[i] = log of the sum over j <= i of exp(score).
void attend(const KernelCall& call, const Head& head, std::int64_t i) {
  const TensorView& qkv = call.inputs[0];
  const Vector score = scores(head, qkv, i);
  const double max = score.maxCoeff<Eigen::PropagateNaN>();
  double sum = 0;
  for (std::int64_t j = 0; j <= i; ++j) {
    sum += std::exp(score[j] - max);
  }
  const double lse = max + std::log(sum);
  head.of_lse(call.outputs[1])[i] = lse;
  Vector p(i + 1);
  for (std::int64_t j = 0; j <= i; ++j) {
    p[j] = std::exp(score[j] - lse) * head.keep(i, j);
  }
  head.of_out(call.outputs[0]).row(i).noalias() = p.transpose() * head.of_qkv(qkv, value).topRows(i + 1);
}

/// One query row's part of the gradient. Dao et al. 2022, arXiv:2205.14135, appendix B.4:
///   dP_ij = keep_ij (dO_i . v_j)     D_i = dO_i . O_i     dS_ij = P_ij (dP_ij - D_i) / sqrt(D)
///   dq_i += dS_ij k_j     dk_j += dS_ij q_i     dv_j += keep_ij P_ij dO_i
void attend_gradient(const KernelCall& call, const Head& head, std::int64_t i) {
  const TensorView& qkv = call.inputs[0];
  const auto keys = head.of_qkv(qkv, key).topRows(i + 1);
  const auto values = head.of_qkv(qkv, value).topRows(i + 1);
  const auto out = head.of_out(call.inputs[1]).row(i);
  const double lse = head.of_lse(call.inputs[2])[i];
  const auto dout = head.of_out(call.inputs[3]).row(i);

  const double dout_out = dout.dot(out);
  Vector p = scores(head, qkv, i);
  Vector ds = values * dout.transpose();
  for (std::int64_t j = 0; j <= i; ++j) {
    const double keep = head.keep(i, j);
    p[j] = std::exp(p[j] - lse);
    ds[j] = p[j] * (keep * ds[j] - dout_out) / std::sqrt(static_cast<double>(head.width));
    p[j] *= keep;
  }
  const TensorView& dqkv = call.outputs[0];
  head.of_qkv(dqkv, query).row(i).noalias() += ds.transpose() * keys;
  head.of_qkv(dqkv, key).topRows(i + 1).noalias() += ds * head.of_qkv(qkv, query).row(i);
  head.of_qkv(dqkv, value).topRows(i + 1).noalias() += p * dout;
}

/// Heads are independent; the queries of one add to the gradients of the same keys.
template <void (*row)(const KernelCall&, const Head&, std::int64_t)>
void for_each_query(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const std::int64_t length = qkv.shape[1];
  for_each(call, qkv.shape[0] * qkv.shape[3], length * length * qkv.shape[4], [&](std::int64_t number) {
    const Head head(call, number);
    for (std::int64_t i = 0; i < length; ++i) {
      row(call, head, i);
    }
  });
}

/// qkv -> out, lse
void attention(const KernelCall& call) { for_each_query<attend>(call); }

/// qkv, out, lse, dout -> dqkv
void attention_gradient(const KernelCall& call) {
  double* dqkv = reals(call.outputs[0]);
  std::fill(dqkv, dqkv + call.outputs[0].elements(), 0.0);
  for_each_query<attend_gradient>(call);
}

const RegisterKernel register_attention("reference", "attention", {.run = attention});
const RegisterKernel register_attention_gradient("reference", "attention_gradient", {.run = attention_gradient});

}  // namespace
}  // namespace shardrun::device::reference
