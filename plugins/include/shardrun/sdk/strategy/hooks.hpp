#pragma once

/// Hooks of a strategy: its class has `plan_hook`, and `sync_gradients` or `after_step` or both.
///
///     void plan_hook(const Job& job, const HookGroup& group, HookWriter& writer) const;
///     void sync_gradients(const HookCall& call) const;
///     void after_step(const HookCall& call) const;
///
/// shardrun/strategy.h says when they are called, and what they may do.

#include <shardrun/sdk/plugin.hpp>
#include <shardrun/strategy.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shardrun::sdk {

enum class Hook : std::uint32_t { sync_gradients = SR_HOOK_SYNC_GRADIENTS, after_step = SR_HOOK_AFTER_STEP };

enum class Exchange : std::uint32_t {
  all_reduce = SR_EXCHANGE_ALL_REDUCE,
  all_gather = SR_EXCHANGE_ALL_GATHER,
  reduce_scatter = SR_EXCHANGE_REDUCE_SCATTER,
  all_to_all = SR_EXCHANGE_ALL_TO_ALL,
};

/// The first value of a hook state.
enum class Begins : std::uint32_t { zero = SR_HOOK_STATE_ZERO, tensor = SR_HOOK_STATE_TENSOR };

/// This rank's part of one of a group's tensors. The part begins at element `first` of the group.
struct HookTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::uint64_t first = 0;
};

/// A group of tensors that are contiguous in memory; see sr_hook_group.
struct HookGroup {
  Hook hook = Hook::sync_gradients;
  std::uint64_t elements = 0;
  std::uint32_t members = 0;
  std::uint32_t states = 0;
  std::vector<HookTensor> tensors{};
};

namespace detail {

[[nodiscard]] inline HookGroup read(const sr_hook_group& raw) {
  HookGroup group{static_cast<Hook>(raw.hook), raw.elements, raw.members, raw.states, {}};
  for_each(raw.tensors, raw.tensor_count, raw.tensor_stride, [&](const sr_hook_tensor& tensor) {
    group.tensors.push_back({tensor.name, {tensor.shape, tensor.shape + tensor.rank}, tensor.first});
  });
  return group;
}

}  // namespace detail

/// Wraps sr_hook_writer, whose rules apply. Every function throws Refused.
class HookWriter {
 public:
  HookWriter(const sr_hook_writer& writer, const HookGroup& group) : writer_(writer), next_(group.states + 1) {}

  /// Returns the new buffer's number.
  std::uint32_t add_buffer(Element element, std::uint64_t elements) {
    detail::call_host([&](sr_error* error) {
      return writer_.add_buffer(writer_.self, static_cast<std::uint32_t>(element), elements, error);
    });
    return next_++;
  }

  void add_call(std::uint32_t call) {
    detail::call_host([&](sr_error* error) { return writer_.add_call(writer_.self, call, error); });
  }

  /// Adds an exchange between buffers, which are given by number: 0 is the group's tensors, then come the hook's
  /// states, then the buffers of add_buffer.
  void add_exchange(Exchange kind, std::uint32_t send, std::uint32_t receive) {
    const sr_exchange exchange{sizeof(sr_exchange), static_cast<std::uint32_t>(kind), send, receive};
    detail::call_host([&](sr_error* error) { return writer_.add_exchange(writer_.self, &exchange, error); });
  }

 private:
  const sr_hook_writer& writer_;
  std::uint32_t next_;
};

/// A call of the hook's function. What it points to is valid until the function returns.
class HookCall {
 public:
  explicit HookCall(const sr_hook_call& call) : call_(call) {}

  /// The number that add_call was given.
  [[nodiscard]] std::uint32_t number() const noexcept { return call_.call; }
  [[nodiscard]] std::uint32_t members() const noexcept { return call_.group->members; }
  /// The tensors of the group, in a new vector at each call.
  [[nodiscard]] std::vector<HookTensor> tensors() const { return detail::read(*call_.group).tensors; }
  [[nodiscard]] std::uint32_t member() const noexcept { return call_.member; }
  [[nodiscard]] std::int64_t step() const noexcept { return call_.step; }
  /// Samples in the step over all ranks, and those from which the gradients at this coordinate of the mesh axis come.
  [[nodiscard]] std::uint64_t samples() const noexcept { return call_.samples; }
  [[nodiscard]] std::uint64_t own_samples() const noexcept { return call_.own_samples; }
  [[nodiscard]] OptionValues options() const {
    return {call_.job->options, call_.job->option_count, call_.job->option_stride};
  }

  // Buffers by number. REQUIRES: the buffer has that element type.
  [[nodiscard]] std::span<float> floats(std::uint32_t buffer) const { return span_of<float>(buffer); }
  [[nodiscard]] std::span<std::int32_t> whole_numbers(std::uint32_t buffer) const {
    return span_of<std::int32_t>(buffer);
  }

 private:
  template <class T>
  [[nodiscard]] std::span<T> span_of(std::uint32_t buffer) const {
    return {static_cast<T*>(call_.buffers[buffer]), static_cast<std::size_t>(call_.elements[buffer])};
  }

  const sr_hook_call& call_;
};

namespace detail {

using HookFunction = std::int32_t (*)(void* self, const sr_hook_call* call, sr_error* error);

template <class Class>
concept NamesSyncGradients = requires {
  &Class::sync_gradients;
};
template <class Class>
concept NamesAfterStep = requires {
  &Class::after_step;
};

/// The function that calls the class's hook; null for a class without it.
template <class Class>
[[nodiscard]] constexpr HookFunction sync_gradients_of() noexcept {
  if constexpr (requires(const Class& strategy, const HookCall& call) { strategy.sync_gradients(call); }) {
    return [](void* self, const sr_hook_call* call, sr_error* error) {
      return guarded(error, [&] { Instance<Class>::object(self).sync_gradients(HookCall(*call)); });
    };
  } else {
    static_assert(!NamesSyncGradients<Class>, "a hook is: void sync_gradients(const HookCall& call) const");
    return nullptr;
  }
}

template <class Class>
[[nodiscard]] constexpr HookFunction after_step_of() noexcept {
  if constexpr (requires(const Class& strategy, const HookCall& call) { strategy.after_step(call); }) {
    return [](void* self, const sr_hook_call* call, sr_error* error) {
      return guarded(error, [&] { Instance<Class>::object(self).after_step(HookCall(*call)); });
    };
  } else {
    static_assert(!NamesAfterStep<Class>, "a hook is: void after_step(const HookCall& call) const");
    return nullptr;
  }
}

}  // namespace detail

}  // namespace shardrun::sdk
