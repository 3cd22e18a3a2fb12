#include "core/device/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/base/error.h"

namespace shardrun::device {
namespace {

std::string list_of(const std::vector<Unit>& units) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < units.size(); ++i) {
    lines.push_back(fmt::format("{} ({}, {})", i, units[i].name, units[i].architecture));
  }
  return fmt::format("{}", fmt::join(lines, ", "));
}

/// The unit of each rank if neighbouring ranks share units.
std::vector<std::size_t> shared_units(std::size_t ranks, std::size_t units) {
  std::vector<std::size_t> shared(ranks);
  for (std::size_t i = 0; i < ranks; ++i) {
    shared[i] = i * units / ranks;
  }
  return shared;
}

}  // namespace

DeviceChoice parse_device(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  DeviceChoice choice{.name = std::string(text.substr(0, colon)), .units = {}};
  if (colon == text.size()) {
    return choice;
  }
  const char* at = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  while (true) {
    std::size_t unit = 0;
    const auto [next, fault] = std::from_chars(at, end, unit);
    if (fault != std::errc() || (next != end && *next != ',')) {
      throw Error(ErrorCode::usage, fmt::format("expected the numbers of units after the colon, such as {}:0,2; found "
                                                "'{}'",
                                                choice.name, text));
    }
    choice.units.push_back(unit);
    if (next == end) {
      return choice;
    }
    at = next + 1;
  }
}

void require_units(const Device& device, const DeviceChoice& choice) {
  if (!choice.units.empty() && !device.has_units()) {
    throw Error(ErrorCode::usage, fmt::format("device {0} has no units to choose from: write {0} alone", choice.name));
  }
}

std::size_t unit_of(const Device& device, const DeviceChoice& choice, std::int64_t local_rank,
                    std::int64_t local_ranks) {
  require_units(device, choice);
  if (!device.has_units()) {
    return 0;
  }
  const std::vector<Unit> units = device.units();
  for (const std::size_t unit : choice.units) {
    if (unit >= units.size()) {
      throw Error(ErrorCode::usage,
                  fmt::format("{}:{} is not there; this machine has {}", choice.name, unit, list_of(units)));
    }
  }
  const std::size_t chosen = choice.units.empty() ? units.size() : choice.units.size();
  const auto needed = static_cast<std::size_t>(std::max(local_ranks, local_rank + 1));
  if (needed > chosen) {
    throw Error(
        ErrorCode::usage,
        choice.units.empty()
            ? fmt::format(
                  "{} ranks are on this machine, which has {}: start one rank for each ([job] ranks = auto), or "
                  "name the unit of each rank: {}:{}",
                  needed, list_of(units), choice.name, fmt::join(shared_units(needed, chosen), ","))
            : fmt::format("{} ranks are on this machine, and {}:{} names the units of {}: name one for each rank",
                          needed, choice.name, fmt::join(choice.units, ","), chosen));
  }
  return choice.units.empty() ? static_cast<std::size_t>(local_rank)
                              : choice.units[static_cast<std::size_t>(local_rank)];
}

}  // namespace shardrun::device
