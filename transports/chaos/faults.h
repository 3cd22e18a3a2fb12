#pragma once

#include <shardrun/sdk/plugin.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardrun::chaos {

/// What happens at one op of one rank, or from it on.
enum class Fault { none, kill, corrupt, stall, drop_peer };

/// What [transport.chaos] asks for.
struct Faults {
  std::string over;                  ///< the transport that moves the bytes
  std::optional<std::int64_t> rank;  ///< whose ops the fault is about; without one, all ranks' are delayed
  std::int64_t delay_ns = 0;
  Fault fault = Fault::none;
  std::uint64_t at_op = 0;  ///< counted from 1, over all groups, in the order in which the rank starts them
  std::uint32_t peer = 0;   ///< of drop_peer
};

[[nodiscard]] std::vector<sdk::Option> options();

/// Throws InvalidJob for what makes no sense together. `world_size`: 0 where it is not known.
[[nodiscard]] Faults faults_of(const sdk::OptionValues& options, std::uint32_t world_size);

/// What of it happens on `rank`.
[[nodiscard]] Faults of_rank(Faults faults, std::uint32_t rank);

/// Whether there is anything to do but to pass everything on.
[[nodiscard]] inline bool is_any(const Faults& faults) noexcept {
  return faults.delay_ns != 0 || faults.fault != Fault::none;
}

}  // namespace shardrun::chaos
