#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "core/device/query_heads.h"
#include "core/device/reference/random.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
/// Rows of a matrix. In memory, rows of other matrices lie between them.
using Rows = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

/// The place of one head's rows in a tensor, in elements.
struct Place {
  std::int64_t begin;
  std::int64_t rows;
  std::int64_t stride;
};

/// One head of queries of one sample, and the head of keys and values that it attends to.
struct Head {
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t width;
  Place q;
  Place k;
  Place v;
  Place out;
  std::int64_t lse;  ///< the element of `lse` at which the head's row begins
  double divisor;    ///< the scores' divisor: 1 / scale, or √D
  bool causal = true;
  std::int64_t window = 0;       ///< 0: no window
  std::int64_t first_query = 0;  ///< the global index of this shard's first query
  const double* mask = nullptr;  ///< [T, S]; null: no mask
  std::int64_t sample;
  std::int64_t first_row;  ///< the number of the head's first row among a sample's rows of probabilities
  Dropout dropout;

  [[nodiscard]] Rows of(const TensorView& tensor, const Place& place) const {
    return {reals(tensor) + place.begin, place.rows, width, Eigen::OuterStride<>(place.stride)};
  }

  /// Query i sees keys [first_key(i), last_key(i)).
  [[nodiscard]] std::int64_t first_key(std::int64_t i) const {
    return window > 0 ? std::max<std::int64_t>(0, first_query + i - window + 1) : 0;
  }
  [[nodiscard]] std::int64_t last_key(std::int64_t i) const {
    const std::int64_t end = causal ? first_query + i + 1 : window > 0 ? first_query + i + window : keys;
    return std::min(end, keys);
  }

  /// Dropout's factor for the probability of key j for query i.
  [[nodiscard]] double keep(std::int64_t i, std::int64_t j) const {
    return dropout.factor(sample, (first_row + i) * keys + j);
  }
};

Dropout dropout_of(const KernelCall& call) {
  return {call.scalars, call.attributes.text("stream"), call.attributes.real("dropout")};
}

/// Head `number` of the B H heads, for qkv [B, T, 3, H, D], out [B, T, H, D] and lse [B, H, T].
Head packed_head(const KernelCall& call, std::int64_t number) {
  const TensorView& qkv = call.inputs[0];
  const std::int64_t length = qkv.shape[1];
  const std::int64_t heads = qkv.shape[3];
  const std::int64_t width = qkv.shape[4];
  const std::int64_t b = number / heads;
  const std::int64_t h = number % heads;
  const auto part = [=](std::int64_t index) {
    return Place{(b * length * 3 + index) * heads * width + h * width, length, 3 * heads * width};
  };
  return {.queries = length,
          .keys = length,
          .width = width,
          .q = part(0),
          .k = part(1),
          .v = part(2),
          .out = {b * length * heads * width + h * width, length, heads * width},
          .lse = number * length,
          .divisor = std::sqrt(static_cast<double>(width)),
          .sample = call.scalars.first_sample + qkv.origin[0] + b,
          .first_row = (qkv.origin[3] + h) * length,
          .dropout = dropout_of(call)};
}

/// Head g of a group of query heads, for q, out [B, T, heads, D] and lse [B, heads, T]. The group reads head `number`
/// of the B H heads of k, v [B, S, H, D].
Head separate_head(const KernelCall& call, const QueryHeads& of, std::int64_t number, std::int64_t g,
                   const double* mask) {
  const TensorView& q = call.inputs[0];
  const std::int64_t queries = q.shape[1];
  const std::int64_t keys = call.inputs[1].shape[1];
  const std::int64_t heads = call.inputs[1].shape[2];
  const std::int64_t width = call.inputs[1].shape[3];
  const std::int64_t b = number / heads;
  const std::int64_t h = number % heads;
  const std::int64_t own = b * of.count + of.of(h, g);
  const Place of_queries = {(b * queries * of.count + of.of(h, g)) * width, queries, of.count * width};
  const Place of_keys = {(b * keys * heads + h) * width, keys, heads * width};
  const double scale = call.attributes.real("scale");
  const std::int64_t head_of_all = of.number_of_all(h, g);
  return {.queries = queries,
          .keys = keys,
          .width = width,
          .q = of_queries,
          .k = of_keys,
          .v = of_keys,
          .out = of_queries,
          .lse = own * queries,
          .divisor = scale != 0 ? 1 / scale : std::sqrt(static_cast<double>(width)),
          .causal = call.attributes.integer("causal") == 1,
          .window = call.attributes.integer("window"),
          .first_query = q.origin[1],
          .mask = mask,
          .sample = call.scalars.first_sample + q.origin[0] + b,
          .first_row = head_of_all * q.global[1] + q.origin[1],
          .dropout = dropout_of(call)};
}

/// The tensors of attention.
struct Tensors {
  const TensorView& q;
  const TensorView& k;
  const TensorView& v;
  const TensorView& out;
  const TensorView& lse;
};

/// q_i . k_j / divisor + mask_ij for all keys j that query i sees.
Vector scores(const Head& head, const Tensors& at, std::int64_t i) {
  const std::int64_t first = head.first_key(i);
  const std::int64_t count = head.last_key(i) - first;
  Vector found =
      head.of(at.k, head.k).middleRows(first, count) * head.of(at.q, head.q).row(i).transpose() / head.divisor;
  for (std::int64_t j = 0; head.mask != nullptr && j < count; ++j) {
    found[j] += head.mask[i * head.keys + first + j];
  }
  return found;
}

/// Row i of softmax(Q K^T / divisor + mask) V over the keys that query i sees. Vaswani et al. 2017, arXiv:1706.03762,
/// equation 1 and section 3.2.3, with dropout on the probabilities. lse[i] = log of the sum over j of exp(score).
void attend(const Head& head, const Tensors& at, std::int64_t i) {
  const std::int64_t first = head.first_key(i);
  const Vector score = scores(head, at, i);
  const double max = score.maxCoeff<Eigen::PropagateNaN>();
  double sum = 0;
  for (const double each : score) {
    sum += std::exp(each - max);
  }
  const double lse = max + std::log(sum);
  reals(at.lse)[head.lse + i] = lse;
  Vector p(score.size());
  for (std::int64_t j = 0; j < p.size(); ++j) {
    p[j] = std::exp(score[j] - lse) * head.keep(i, first + j);
  }
  head.of(at.out, head.out).row(i).noalias() = p.transpose() * head.of(at.v, head.v).middleRows(first, p.size());
}

/// The gradients that attention computes, and the gradient of its result.
struct Gradients {
  const TensorView& dout;
  const TensorView& dq;
  const TensorView& dk;
  const TensorView& dv;
};

/// One query row's part of the gradient. Dao et al. 2022, arXiv:2205.14135, appendix B.4:
///   dP_ij = keep_ij (dO_i . v_j)     D_i = dO_i . O_i     dS_ij = P_ij (dP_ij - D_i) / divisor
///   dq_i += dS_ij k_j     dk_j += dS_ij q_i     dv_j += keep_ij P_ij dO_i
void attend_gradient(const Head& head, const Tensors& at, const Gradients& to, std::int64_t i) {
  const std::int64_t first = head.first_key(i);
  Vector p = scores(head, at, i);
  const auto seen = [&](const TensorView& tensor, const Place& place) {
    return head.of(tensor, place).middleRows(first, p.size());
  };
  const auto out = head.of(at.out, head.out).row(i);
  const auto dout = head.of(to.dout, head.out).row(i);
  const double lse = reals(at.lse)[head.lse + i];
  const double dout_out = dout.dot(out);
  Vector ds = seen(at.v, head.v) * dout.transpose();
  for (std::int64_t j = 0; j < p.size(); ++j) {
    const double keep = head.keep(i, first + j);
    p[j] = std::exp(p[j] - lse);
    ds[j] = p[j] * (keep * ds[j] - dout_out) / head.divisor;
    p[j] *= keep;
  }
  head.of(to.dq, head.q).row(i).noalias() += ds.transpose() * seen(at.k, head.k);
  seen(to.dk, head.k).noalias() += ds * head.of(at.q, head.q).row(i);
  seen(to.dv, head.v).noalias() += p * dout;
}

/// Calls body(head, query) for every query of every head. Heads of keys and values run in parallel. The queries of one
/// such head do not, because they add to the same gradients.
template <typename Body>
void for_each_packed(const KernelCall& call, const Body& body) {
  const TensorView& qkv = call.inputs[0];
  const std::int64_t length = qkv.shape[1];
  for_each(call, qkv.shape[0] * qkv.shape[3], length * length * qkv.shape[4], [&](std::int64_t number) {
    const Head head = packed_head(call, number);
    for (std::int64_t i = 0; i < length; ++i) {
      body(head, i);
    }
  });
}

/// The same for separate q, k and v. `mask`: the index of the mask among the operands, if there is one.
template <typename Body>
void for_each_separate(const KernelCall& call, std::size_t mask, const Body& body) {
  const TensorView& q = call.inputs[0];
  const double* masks = mask < call.inputs.size() ? reals(call.inputs[mask]) : nullptr;
  const TensorView& k = call.inputs[1];
  const QueryHeads heads = query_heads(call.attributes, q, k);
  const std::int64_t work = heads.group * q.shape[1] * k.shape[1] * k.shape[3];
  for_each(call, q.shape[0] * k.shape[2], work, [&](std::int64_t number) {
    const std::int64_t h = number % k.shape[2];
    for (std::int64_t g = heads.first(h); g < heads.last(h); ++g) {
      const Head head = separate_head(call, heads, number, g, masks);
      for (std::int64_t i = 0; i < head.queries; ++i) {
        body(head, i);
      }
    }
  });
}

void fill_zeros(const TensorView& tensor) { std::fill(reals(tensor), reals(tensor) + tensor.elements(), 0.0); }

/// qkv -> out, lse
void attention(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const Tensors at = {qkv, qkv, qkv, call.outputs[0], call.outputs[1]};
  for_each_packed(call, [&](const Head& head, std::int64_t i) { attend(head, at, i); });
}

/// qkv, out, lse, dout -> dqkv
void attention_gradient(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const TensorView& dqkv = call.outputs[0];
  const Tensors at = {qkv, qkv, qkv, call.inputs[1], call.inputs[2]};
  const Gradients to = {call.inputs[3], dqkv, dqkv, dqkv};
  fill_zeros(dqkv);
  for_each_packed(call, [&](const Head& head, std::int64_t i) { attend_gradient(head, at, to, i); });
}

/// q, k, v (, mask) -> out, lse
void separate_attention(const KernelCall& call) {
  const Tensors at = {call.inputs[0], call.inputs[1], call.inputs[2], call.outputs[0], call.outputs[1]};
  for_each_separate(call, 3, [&](const Head& head, std::int64_t i) { attend(head, at, i); });
}

/// q, k, v, out, lse, dout (, mask) -> dq, dk, dv
void separate_attention_gradient(const KernelCall& call) {
  const Tensors at = {call.inputs[0], call.inputs[1], call.inputs[2], call.inputs[3], call.inputs[4]};
  const Gradients to = {call.inputs[5], call.outputs[0], call.outputs[1], call.outputs[2]};
  for (const TensorView& gradient : call.outputs) {
    fill_zeros(gradient);
  }
  for_each_separate(call, 6, [&](const Head& head, std::int64_t i) { attend_gradient(head, at, to, i); });
}

const RegisterKernel register_attention("reference", "attention", {.run = attention});
const RegisterKernel register_attention_gradient("reference", "attention_gradient", {.run = attention_gradient});
const RegisterKernel register_separate_attention("reference", "scaled_dot_product_attention",
                                                 {.run = separate_attention});
const RegisterKernel register_separate_attention_gradient("reference", "scaled_dot_product_attention_gradient",
                                                          {.run = separate_attention_gradient});

}  // namespace
}  // namespace shardrun::device::reference
