#include "core/metrics/human.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

namespace shardrun::metrics {
namespace {

/// At most three digits before the unit. 999.6 is "1.00k" and not "1000": units are chosen by what is shown.
std::string scaled(double value, double base, std::span<const std::string_view> units, std::string_view between) {
  std::size_t unit = 0;
  while (value >= base - 0.5 && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  int decimals = 0;
  if (unit > 0) {
    decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  }
  return fmt::format("{:.{}f}{}{}", value, decimals, between, units[unit]);
}

}  // namespace

std::string human_count(double value) {
  constexpr std::array<std::string_view, 6> units = {"", "k", "M", "G", "T", "P"};
  if (!std::isfinite(value) || value < 0) {
    return "-";
  }
  return value > 0 && value < 9.95 && value != std::floor(value) ? fmt::format("{:.1f}", value)
                                                                 : scaled(value, 1000, units, "");
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 6> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled(static_cast<double>(bytes), 1024, units, " ");
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) {
    return "-";
  }
  if (seconds < 9.95) {
    return fmt::format("{:.{}f}s", seconds, seconds < 0.995 ? 2 : 1);
  }
  const double whole = std::round(seconds);
  const auto split = [&](double large, double small) {
    const double count = std::floor(whole / large);
    return std::array{count, std::floor((whole - count * large) / small)};
  };
  if (whole < 60) {
    return fmt::format("{:.0f}s", whole);
  }
  if (whole < 3600) {
    const auto [minutes, rest] = split(60, 1);
    return fmt::format("{:.0f}m{:02.0f}s", minutes, rest);
  }
  if (whole < 86400) {
    const auto [hours, rest] = split(3600, 60);
    return fmt::format("{:.0f}h{:02.0f}m", hours, rest);
  }
  const auto [days, rest] = split(86400, 3600);
  return fmt::format("{:.0f}d{:02.0f}h", days, rest);
}

}  // namespace shardrun::metrics
