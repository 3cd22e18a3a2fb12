#pragma once

/// The ops as functions of values: elementwise ops in arithmetic.hpp, ops on whole tensors in tensors.hpp, ops on
/// images in images.hpp, and other layers here. 'shardrun help ops' says what each op computes. The last argument,
/// `name`, names the node; without it the node is named after the parameters that it reads, or after the op.

#include <shardrun/sdk/model/images.hpp>
#include <shardrun/sdk/model/tensors.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::sdk {

/// y[L, N…] = sum over K… of x[L, K…] · w[K…, N…], where K are the last `contract` dimensions of x.
[[nodiscard]] inline Value matmul(const Value& x, const Value& w, std::int64_t contract = 1,
                                  const std::string& name = {}) {
  return x.function().call("matmul", {x, w}, {{"contract", contract}, {"transpose", std::int64_t{0}}}, name);
}
/// The same as matmul with w[N…, K…].
[[nodiscard]] inline Value matmul_transposed(const Value& x, const Value& w, std::int64_t contract = 1,
                                             const std::string& name = {}) {
  return x.function().call("matmul", {x, w}, {{"contract", contract}, {"transpose", std::int64_t{1}}}, name);
}

/// The rows of `table` [vocab, embed] at the indices `tokens`.
[[nodiscard]] inline Value embedding(const Value& tokens, const Value& table, const std::string& name = {}) {
  return tokens.function().call("embedding", {tokens, table}, {}, name);
}

/// (x − mean) / sqrt(variance + epsilon) · gain over the last dimension, with or without `+ bias`.
[[nodiscard]] inline Value layer_norm(const Value& x, const Value& gain, double epsilon, const std::string& name = {}) {
  return x.function().call_all("layer_norm", {x, gain}, {{"epsilon", epsilon}}, name).front();
}
[[nodiscard]] inline Value layer_norm(const Value& x, const Value& gain, const Value& bias, double epsilon,
                                      const std::string& name = {}) {
  return x.function().call_all("layer_norm", {x, gain, bias}, {{"epsilon", epsilon}}, name).front();
}

/// Zeroes elements at this rate, and divides the others by 1 − rate. Random draws depend on the seed, `stream`, the
/// step and the sample. Two dropouts of a function must have different streams.
[[nodiscard]] inline Value dropout(const Value& x, double rate, const std::string& stream,
                                   const std::string& name = {}) {
  return x.function().call("dropout", {x}, {{"rate", rate}, {"stream", stream}}, name);
}

/// Causal scaled dot-product attention. qkv: [batch, seq, 3, heads, head_dim]   result: [batch, seq, heads, head_dim]
[[nodiscard]] inline Value attention(const Value& qkv, double dropout, const std::string& stream,
                                     const std::string& name = {}) {
  return qkv.function().call_all("attention", {qkv}, {{"dropout", dropout}, {"stream", stream}}, name).front();
}

/// The rows of x at a position that the host sets before each call. x: [batch, seq, embed]   result: [batch, embed]
[[nodiscard]] inline Value take_position(const Value& x, const std::string& name = {}) {
  return x.function().call("take_position", {x}, {}, name);
}

/// Cross-entropy of each row. logits: [..., vocab]   targets: i32 [...]   result: [...]
[[nodiscard]] inline Value cross_entropy(const Value& logits, const Value& targets) {
  Function& f = logits.function();
  const Value highest = f.call("row_max", {logits}, {}, "highest_logit");
  const std::vector<Value> terms = f.call_all("softmax_terms", {logits, highest, targets}, {}, "softmax_terms");
  return f.call("token_loss", {highest, terms[0], terms[1]}, {}, "losses");
}

/// Half the squared distance of each row. x, targets: [..., n]   result: [...]
[[nodiscard]] inline Value squared_error(const Value& x, const Value& targets, const std::string& name = {}) {
  return x.function().call("squared_error", {x, targets}, {}, name);
}

/// The gradient of a scalar with respect to a state, an input or the result of an op.
[[nodiscard]] inline Value gradient(const Value& scalar, const Value& of) {
  return scalar.function().gradients(scalar, {of}).front();
}

/// What shift() reads past the ends of a dimension.
struct Boundary {
  bool periodic = true;  ///< the elements at the other end
  double value = 0;      ///< used if not periodic
};

/// Element i of the result is element i + offset of x, along dimension `dim`.
[[nodiscard]] inline Value shift(const Value& x, std::size_t dim, std::int64_t offset, const Boundary& boundary = {},
                                 const std::string& name = {}) {
  return x.function().call("shift", {x},
                           {{"dim", static_cast<std::int64_t>(dim)},
                            {"offset", offset},
                            {"boundary", boundary.periodic ? "periodic" : "fixed"},
                            {"value", boundary.value}},
                           name);
}

/// softmax is exp(x) divided by its sum along the last dimension, and log_softmax is the logarithm of softmax.
[[nodiscard]] inline Value softmax(const Value& x, const std::string& name = {}) {
  return x.function().call("softmax", {x}, {}, name);
}
[[nodiscard]] inline Value log_softmax(const Value& x, const std::string& name = {}) {
  return x.function().call("log_softmax", {x}, {}, name);
}

/// For each element, the sum of x up to it along dimension `dim`; with `reverse`, from it on.
[[nodiscard]] inline Value cumulative_sum(const Value& x, std::size_t dim, bool reverse = false,
                                          const std::string& name = {}) {
  return x.function().call(
      "cumulative_sum", {x},
      {{"dim", static_cast<std::int64_t>(dim)}, {"reverse", static_cast<std::int64_t>(reverse ? 1 : 0)}}, name);
}

/// x / sqrt(mean of x² + epsilon) · gain over the last dimension.
[[nodiscard]] inline Value rms_norm(const Value& x, const Value& gain, double epsilon, const std::string& name = {}) {
  return x.function().call_all("rms_norm", {x, gain}, {{"epsilon", epsilon}}, name).front();
}

/// How rope() rotates.
struct Rope {
  double base = 10000;
  std::int64_t offset = 0;   ///< the position of index 0
  bool interleaved = false;  ///< a pair is two neighbours; otherwise i and i + head_dim / 2, as in Llama
  /// The angle of each of the head_dim / 2 pairs at position 1, for scaled rotations. Empty: `base` determines the
  /// angles. Hosts support this and `factor` since 1.9.
  std::vector<double> frequencies = {};
  double factor = 1;  ///< multiplies the result
};

/// Rotary position embedding: rotates pair i of the last dimension by the angle position / base^(2i / head_dim). A
/// position is the index along dimension `dim` or, if given, an element of `positions`: i32, with the dimensions of x
/// up to `dim`.
[[nodiscard]] inline Value rope(const Value& x, const Value& positions, std::size_t dim, const Rope& how = {},
                                const std::string& name = {}) {
  std::vector<Attribute> attributes = {{"dim", static_cast<std::int64_t>(dim)},
                                       {"base", how.base},
                                       {"offset", how.offset},
                                       {"interleaved", static_cast<std::int64_t>(how.interleaved ? 1 : 0)},
                                       {"inverse", std::int64_t{0}}};
  if (!how.frequencies.empty()) {
    attributes.push_back({"frequencies", how.frequencies});
  }
  if (how.factor != 1) {
    attributes.push_back({"factor", how.factor});
  }
  std::vector<Value> operands = {x};
  if (positions.exists()) {
    operands.push_back(positions);
  }
  return x.function().call("rope", operands, attributes, name);
}
[[nodiscard]] inline Value rope(const Value& x, std::size_t dim, const Rope& how = {}, const std::string& name = {}) {
  return rope(x, Value(), dim, how, name);
}

/// Which keys a query attends to, and how scores are scaled and dropped.
struct Attention {
  bool causal = true;       ///< query i attends to keys 0 to i
  std::int64_t window = 0;  ///< only keys at a distance below this; 0: no limit
  double scale = 0;         ///< multiplies the scores; 0: 1 / sqrt(head_dim)
  double dropout = 0;
  std::string stream = "attention";  ///< of dropout's random numbers
  /// The number of query heads that share one head of keys and values, if queries are [batch, seq, heads, head_dim]:
  /// see Dim::grouped. Such heads can be split anywhere. 0: queries have a dimension of their own for the group.
  std::int64_t group = 0;
};

namespace detail {

[[nodiscard]] inline Value attend(const std::vector<Value>& operands, const Attention& how, const std::string& name) {
  std::vector<Attribute> attributes = {{"causal", static_cast<std::int64_t>(how.causal ? 1 : 0)},
                                       {"window", how.window},
                                       {"scale", how.scale},
                                       {"dropout", how.dropout},
                                       {"stream", how.stream}};
  if (how.group > 0) {
    attributes.push_back({"group", how.group});
  }
  return operands.front().function().call_all("scaled_dot_product_attention", operands, attributes, name).front();
}

}  // namespace detail

/// Attention of queries [batch, seq, kv_heads, group, head_dim] to keys and values [batch, keys, kv_heads, head_dim].
/// The heads of a group share one head of keys and values; with a group of 1 this is multi-head attention. With
/// `how.group`, queries are [batch, seq, heads, head_dim]. The result has the shape of the queries.
[[nodiscard]] inline Value scaled_dot_product_attention(const Value& q, const Value& k, const Value& v,
                                                        const Attention& how = {}, const std::string& name = {}) {
  return detail::attend({q, k, v}, how, name);
}
/// The same with a mask [seq, keys] that is added to the scores. The mask gets no gradient.
[[nodiscard]] inline Value scaled_dot_product_attention(const Value& q, const Value& k, const Value& v,
                                                        const Value& mask, const Attention& how = {},
                                                        const std::string& name = {}) {
  return detail::attend({q, k, v, mask}, how, name);
}

}  // namespace shardrun::sdk
