#pragma once

#include <cstddef>
#include <cstdint>
#include <shardrun/sdk/reduce.hpp>
#include <span>

namespace shm {

/// Reduces the members' data in rank order. The bits do not depend on which member reduces or how the data is cut.
class Reducer {
 public:
  Reducer() = default;
  Reducer(std::uint32_t dtype, std::uint32_t reduction, std::uint64_t element_bytes) noexcept;

  /// Reduces `count` elements of two or more sources into every target. A target is one of the sources or overlaps
  /// none.
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
