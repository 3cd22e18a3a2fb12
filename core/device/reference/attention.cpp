#include <algorithm>
#include <cmath>

#include "core/device/reference/elements.h"
#include "core/device/reference/random.h"

namespace shardrun::device::reference {
namespace {

enum Part : std::int64_t { query, key, value };

/// Sizes and addressing of qkv [B, T, 3, H, D], out [B, T, H, D] and lse [B, H, T].
struct Layout {
  explicit Layout(const KernelCall& call)
      : qkv(call.inputs[0]),
        batch(qkv.shape[0]),
        length(qkv.shape[1]),
        heads(qkv.shape[3]),
        width(qkv.shape[4]),
        first_sample(call.scalars.first_sample + qkv.origin[0]),
        first_head(qkv.origin[3]),
        dropout(call.scalars, call.attributes.text("stream"), call.attributes.real("dropout")) {}

  std::int64_t qkv_row(std::int64_t b, std::int64_t t, Part part, std::int64_t h) const {
    return (((b * length + t) * 3 + part) * heads + h) * width;
  }
  std::int64_t out_row(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return ((b * length + t) * heads + h) * width;
  }
  std::int64_t lse_element(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * heads + h) * length + t;
  }

  /// q_i . k_j / sqrt(D)
  double score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const double* q = reals(qkv) + qkv_row(b, i, query, h);
    const double* k = reals(qkv) + qkv_row(b, j, key, h);
    double dot = 0;
    for (std::int64_t d = 0; d < width; ++d) {
      dot += q[d] * k[d];
    }
    return dot / std::sqrt(static_cast<double>(width));
  }

  /// What dropout multiplies the probability of key j for query i by.
  double keep(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return dropout.factor(first_sample + b, ((first_head + h) * length + i) * length + j);
  }

  const TensorView& qkv;
  std::int64_t batch;
  std::int64_t length;
  std::int64_t heads;
  std::int64_t width;
  std::int64_t first_sample;
  std::int64_t first_head;
  Dropout dropout;
};

/// Causal softmax(Q K^T / sqrt(D)) V. Vaswani et al. 2017, arXiv:1706.03762, equation 1 and section 3.2.3, with dropout
/// on the probabilities; lse[i] = log of the sum over j <= i of exp(score).
void attend(const KernelCall& call, const Layout& at, std::int64_t b, std::int64_t h, std::int64_t i) {
  double max = at.score(b, h, i, 0);
  for (std::int64_t j = 1; j <= i; ++j) {
    max = std::max(max, at.score(b, h, i, j));
  }
  double sum = 0;
  for (std::int64_t j = 0; j <= i; ++j) {
    sum += std::exp(at.score(b, h, i, j) - max);
  }
  const double lse = max + std::log(sum);
  reals(call.outputs[1])[at.lse_element(b, h, i)] = lse;

  double* out = reals(call.outputs[0]) + at.out_row(b, i, h);
  std::fill(out, out + at.width, 0.0);
  for (std::int64_t j = 0; j <= i; ++j) {
    const double p = std::exp(at.score(b, h, i, j) - lse) * at.keep(b, h, i, j);
    const double* v = reals(at.qkv) + at.qkv_row(b, j, value, h);
    for (std::int64_t d = 0; d < at.width; ++d) {
      out[d] += p * v[d];
    }
  }
}

/// One query row's part of the gradient. Dao et al. 2022, arXiv:2205.14135, appendix B.4:
///   dP_ij = keep_ij (dO_i . v_j)     D_i = dO_i . O_i     dS_ij = P_ij (dP_ij - D_i) / sqrt(D)
///   dq_i += dS_ij k_j     dk_j += dS_ij q_i     dv_j += keep_ij P_ij dO_i
void attend_gradient(const KernelCall& call, const Layout& at, std::int64_t b, std::int64_t h, std::int64_t i) {
  const double* qkv = reals(at.qkv);
  double* dqkv = reals(call.outputs[0]);
  const double* out = reals(call.inputs[1]) + at.out_row(b, i, h);
  const double lse = reals(call.inputs[2])[at.lse_element(b, h, i)];
  const double* dout = reals(call.inputs[3]) + at.out_row(b, i, h);
  double dout_out = 0;
  for (std::int64_t d = 0; d < at.width; ++d) {
    dout_out += dout[d] * out[d];
  }
  for (std::int64_t j = 0; j <= i; ++j) {
    const std::int64_t q_row = at.qkv_row(b, i, query, h);
    const std::int64_t k_row = at.qkv_row(b, j, key, h);
    const std::int64_t v_row = at.qkv_row(b, j, value, h);
    double dout_v = 0;
    for (std::int64_t d = 0; d < at.width; ++d) {
      dout_v += dout[d] * qkv[v_row + d];
    }
    const double keep = at.keep(b, h, i, j);
    const double p = std::exp(at.score(b, h, i, j) - lse);
    const double ds = p * (keep * dout_v - dout_out) / std::sqrt(static_cast<double>(at.width));
    for (std::int64_t d = 0; d < at.width; ++d) {
      dqkv[q_row + d] += ds * qkv[k_row + d];
      dqkv[k_row + d] += ds * qkv[q_row + d];
      dqkv[v_row + d] += keep * p * dout[d];
    }
  }
}

template <void (*row)(const KernelCall&, const Layout&, std::int64_t, std::int64_t, std::int64_t)>
void for_each_query(const KernelCall& call) {
  const Layout at(call);
  for (std::int64_t b = 0; b < at.batch; ++b) {
    for (std::int64_t h = 0; h < at.heads; ++h) {
      for (std::int64_t i = 0; i < at.length; ++i) {
        row(call, at, b, h, i);
      }
    }
  }
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
