#include "core/base/human.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

namespace shardrun {
namespace {

/// At most three digits before the unit. 999.6 becomes "1.00k" and not "1000": the unit is chosen after rounding.
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

/// Scaled by thousands. A small number that is not whole keeps a decimal.
std::string in_units(double value, std::span<const std::string_view> units, std::string_view after) {
  if (!std::isfinite(value) || value < 0) {
    return "-";
  }
  if (value > 0 && value < 9.95 && value != std::floor(value)) {
    return fmt::format("{:.1f}{}{}", value, units.front(), after);
  }
  return scaled(value, 1000, units, "") + std::string(after);
}

}  // namespace

std::string human_count(double value) {
  constexpr std::array<std::string_view, 6> units = {"", "k", "M", "G", "T", "P"};
  return in_units(value, units, "");
}

std::string human_quantity(double value, std::string_view unit) {
  constexpr std::array<std::string_view, 8> prefixes = {" ", " k", " M", " G", " T", " P", " E", " Z"};
  return in_units(value, prefixes, unit);
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

std::string human_time(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds >= 59.95) {
    return human_duration(seconds);
  }
  double value = seconds * 1e6;
  std::string_view unit = "us";
  for (const std::string_view larger : {"ms", "s"}) {
    if (value >= 999.5) {
      value /= 1000;
      unit = larger;
    }
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
}

std::string counted(std::int64_t count, std::string_view singular, std::string_view plural) {
  if (count == 1) {
    return fmt::format("1 {}", singular);
  }
  return plural.empty() ? fmt::format("{} {}s", count, singular) : fmt::format("{} {}", count, plural);
}

}  // namespace shardrun
