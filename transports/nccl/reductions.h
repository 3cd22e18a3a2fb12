#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstdint>
#include <vector>

#include "transports/nccl/steps.h"

namespace shardrun::nccl_transport {

/// How an op is computed; see info_of.
enum class Method : std::uint8_t { nccl, keyed, in_order };

[[nodiscard]] bool is_floating(std::uint32_t dtype) noexcept;
/// Whether the members' floating-point numbers must be summed in order, and the order makes a difference.
[[nodiscard]] bool is_summed_in_order(const sdk::OpSpec& op, std::uint32_t n);
[[nodiscard]] Method method_of(const sdk::OpSpec& op, std::uint32_t n, bool with_kernels);
/// Scratch bytes of an op whose method uses kernels, for the member that needs most.
[[nodiscard]] std::uint64_t scratch_of(const sdk::OpSpec& op, std::uint32_t n, Method method);
/// The stages of an op whose method uses kernels.
[[nodiscard]] std::vector<Stage> reduction_stages_of(const sdk::OpSpec& op, std::uint32_t rank, std::uint32_t n,
                                                     Method method);

}  // namespace shardrun::nccl_transport
