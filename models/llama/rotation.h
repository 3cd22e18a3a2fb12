#pragma once

#include <shardrun/sdk/model.hpp>

namespace llama {

/// The model's options for scaled rotary embeddings: scaling, scaling_factor and others.
[[nodiscard]] std::vector<shardrun::sdk::Option> rotation_options();

/// The rotary embedding for heads of size `head_dim`. Throws shardrun::sdk::InvalidJob if an option that the scaling
/// needs is missing.
[[nodiscard]] shardrun::sdk::Rope rotation(const shardrun::sdk::OptionValues& options, std::int64_t head_dim);

}  // namespace llama
