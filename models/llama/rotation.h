#pragma once

#include <shardrun/sdk/model.hpp>

namespace llama {

/// The options of a scaled rotation: scaling, scaling_factor, …
[[nodiscard]] std::vector<shardrun::sdk::Option> rotation_options();

/// How queries and keys of `head_dim` columns are turned. Throws shardrun::sdk::InvalidJob for a scaling that lacks an
/// option.
[[nodiscard]] shardrun::sdk::Rope rotation(const shardrun::sdk::OptionValues& options, std::int64_t head_dim);

}  // namespace llama
