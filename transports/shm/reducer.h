#pragma once

#include <cstddef>
#include <cstdint>
#include <shardrun/sdk/reduce.hpp>
#include <span>

namespace shm {

/// Reduces what several members have, in their order: the same bits whoever does it, and wherever a piece begins.
class Reducer {
 public:
  Reducer() = default;
  Reducer(std::uint32_t dtype, std::uint32_t reduction, std::uint64_t element_bytes) noexcept;

  /// `count` elements of two or more sources into every target. A target may be one of the sources itself, else it
  /// overlaps none of them.
  void run(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
           std::uint64_t count) const noexcept;

 private:
  void run_tile(std::span<const std::byte* const> sources, std::span<std::byte* const> targets, std::uint64_t offset,
                std::uint64_t count) const noexcept;

  shardrun::sdk::Reduction into_one_ = nullptr;
  shardrun::sdk::Reduction into_two_ = nullptr;
  std::uint64_t element_bytes_ = 1;
};

}  // namespace shm
