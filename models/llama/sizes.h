#pragma once

#include <shardrun/sdk/model.hpp>

#include <cstdint>
#include <string>

namespace llama {

/// The checked options.
struct Sizes {
  std::int64_t layers, kv_heads, group, width, head_dim, hidden, context, vocab, window, first_window_layer;
  bool qkv_bias, output_bias, mlp_bias, qk_norm, tied;
  double epsilon, deviation;
  shardrun::sdk::Rope rope;
};

/// Throws InvalidJob for options that contradict each other.
[[nodiscard]] Sizes sizes(const shardrun::sdk::ModelJob& job);

/// "layer.3"
[[nodiscard]] inline std::string layer_scope(std::int64_t layer) { return "layer." + std::to_string(layer); }

}  // namespace llama
