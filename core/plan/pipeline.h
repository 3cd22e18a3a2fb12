#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::plan {

/// Consecutive layers on one stage: from `first_layer` up to the next chunk's first layer.
struct Chunk {
  std::uint32_t first_layer = 0;
  std::uint32_t stage = 0;

  bool operator==(const Chunk&) const = default;
};

/// What a stage does with one chunk and one microbatch.
struct Action {
  enum class Kind : std::uint8_t { forward, backward, backward_input, backward_weight } kind = Kind::forward;
  std::uint32_t chunk = 0;
  std::uint32_t microbatch = 0;

  bool operator==(const Action&) const = default;
};

struct Pipeline {
  std::string mesh_axis;  ///< empty: there is none
  std::vector<Chunk> chunks;
  std::vector<std::vector<Action>> actions;  ///< per stage, in execution order

  bool operator==(const Pipeline&) const = default;
};

/// F for forward, B for backward, or I and W for the two parts of backward.
[[nodiscard]] std::string_view letter(Action::Kind kind) noexcept;

/// "2F0": forward of chunk 2, microbatch 0.
[[nodiscard]] std::string to_string(const Action& action);

}  // namespace shardrun::plan
