#pragma once

#include <shardrun/sdk/model.hpp>

#include <cstdint>
#include <string>

namespace llama {

/// The model's options, checked, and sizes derived from them.
struct Sizes {
  std::int64_t layers, kv_heads, group, width, head_dim, hidden, context, vocab, window, first_window_layer;
  bool qkv_bias, output_bias, mlp_bias, qk_norm, tied;
  double epsilon, deviation;
  shardrun::sdk::Rope rope;
};

/// Reads and checks the options. Throws InvalidJob for options that contradict each other.
[[nodiscard]] Sizes sizes(const shardrun::sdk::ModelJob& job);

/// The scope of a layer's states: "layer.3".
[[nodiscard]] inline std::string layer_scope(std::int64_t layer) { return "layer." + std::to_string(layer); }

}  // namespace llama
