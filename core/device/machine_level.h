#pragma once

namespace shardrun::device {

/// The instruction set that this machine offers: 4 (AVX-512), 3 (AVX2) or 0 (what every one has).
[[nodiscard]] int machine_level() noexcept;

}  // namespace shardrun::device
