#pragma once

#include <shardrun/sdk/plugin.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardrun::chaos_transport {

/// The fault that an op of a rank gets. Some faults last for every later op, too.
enum class Fault { none, kill, corrupt, stall, drop_peer };

/// The options of [transport.chaos].
struct Faults {
  std::string over;                  ///< the inner transport, which moves the data
  std::optional<std::int64_t> rank;  ///< the rank whose ops get the fault; nothing: all ranks are delayed
  std::int64_t delay_ns = 0;
  Fault fault = Fault::none;
  std::uint64_t at_op = 0;  ///< counted from 1 over all groups, in the order in which the rank starts ops
  std::uint32_t peer = 0;   ///< for drop_peer
};

[[nodiscard]] std::vector<sdk::Option> options();

/// Throws InvalidJob if options contradict each other. `world_size`: 0 if it is not known.
[[nodiscard]] Faults faults_of(const sdk::OptionValues& options, std::uint32_t world_size);

/// The faults that concern `rank`.
[[nodiscard]] Faults of_rank(Faults faults, std::uint32_t rank);

/// Whether there is any fault. Without one, every call is passed on unchanged.
[[nodiscard]] inline bool is_any(const Faults& faults) noexcept {
  return faults.delay_ns != 0 || faults.fault != Fault::none;
}

}  // namespace shardrun::chaos_transport
