#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::plan {

/// The kind of a hook. It determines when the strategy's own function is called: see shardrun/strategy.h.
enum class HookKind : std::uint8_t { sync_gradients, after_step };

/// A state that a hook keeps for each of its tensors, between its runs.
struct HookState {
  std::string name;
  bool copies_tensor = false;  ///< whether it begins as a copy of the tensor; otherwise it begins as zeros

  bool operator==(const HookState&) const = default;
};

/// A strategy's hook. shardrun/strategy.h says when hooks run.
struct Hook {
  HookKind kind = HookKind::sync_gradients;
  std::string mesh_axis;
  std::uint32_t every = 1;           ///< for after_step: the hook runs after every `every` steps
  std::vector<std::string> tensors;  ///< names of the tensors, in the order of the request
  std::vector<HookState> states;

  bool operator==(const Hook&) const = default;
};

/// This rank's part of one tensor of a group.
struct HookTensor {
  std::string name;
  std::vector<std::int64_t> shape;

  bool operator==(const HookTensor&) const = default;
};

/// Tensors that a hook processes together.
struct HookGroup {
  HookKind kind = HookKind::sync_gradients;
  std::uint32_t members = 1;  ///< ranks along the hook's mesh axis
  std::uint32_t states = 0;   ///< number of states that the hook keeps for each tensor
  std::vector<HookTensor> tensors;

  bool operator==(const HookGroup&) const = default;
};

/// A buffer that a hook uses besides its tensors and states.
struct HookBuffer {
  bool whole_numbers = false;  ///< i32 elements; otherwise f32
  std::uint64_t elements = 0;

  bool operator==(const HookBuffer&) const = default;
};

/// A step of a hook: call number `call` of its function, or an exchange (sr_exchange) of buffers `send` and `receive`.
struct HookStep {
  enum class Kind : std::uint8_t { call, all_reduce, all_gather, reduce_scatter, all_to_all } kind = Kind::call;
  std::uint32_t call = 0;
  std::uint32_t send = 0;
  std::uint32_t receive = 0;

  bool operator==(const HookStep&) const = default;
};

/// The buffers and steps of a hook for one group.
struct HookPlan {
  std::vector<HookBuffer> buffers;
  std::vector<HookStep> steps;

  bool operator==(const HookPlan&) const = default;
};

[[nodiscard]] const char* to_string(HookKind kind) noexcept;

/// A group as text for messages, such as "hook after_step of w and 3 more".
[[nodiscard]] std::string to_string(const HookGroup& group);

}  // namespace shardrun::plan
