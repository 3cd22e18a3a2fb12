#pragma once

namespace shardrun::device {

/// The instruction set of this machine: 4 (AVX-512 and level 3), 3 (AVX2, FMA and F16C) or 0 (baseline).
[[nodiscard]] int machine_level() noexcept;

}  // namespace shardrun::device
