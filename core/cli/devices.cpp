#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/process.h"
#include "core/cli/options.h"
#include "core/device/device.h"
#include "core/device/library.h"
#include "core/launch/world.h"

namespace shardrun::cli {
namespace {

namespace json = boost::json;

std::vector<std::string> names_of(const std::vector<graph::DType>& dtypes) {
  std::vector<std::string> names;
  for (const graph::DType dtype : dtypes) {
    names.emplace_back(to_string(dtype));
  }
  return names;
}

/// A device whose code is in a library. `lacks`: why it cannot be used, such as a missing library.
struct InLibrary {
  std::string_view name;
  const device::Device* device = nullptr;
  std::vector<device::Unit> units = {};
  std::string lacks = {};  ///< empty: nothing is missing
};

InLibrary look_for(std::string_view name) {
  InLibrary found{.name = name};
  try {
    found.device = &device::Device::find(name);
    found.units = found.device->units();
  } catch (const Error& error) {
    found.lacks = error.message();
  }
  return found;
}

std::string text_of(const InLibrary& found) {
  const device::DeviceFacts facts = found.device == nullptr ? device::DeviceFacts{} : found.device->facts();
  if (!found.lacks.empty()) {
    return fmt::format("{}: not available: {}\n{}", found.name, found.lacks,
                       facts.bf16_products.empty() ? "" : fmt::format("    bf16 products: {}\n", facts.bf16_products));
  }
  std::string text = fmt::format("{} ({}): computes in {}; bf16 products: {}; not addressable by the host\n",
                                 found.name, counted(static_cast<std::int64_t>(found.units.size()), "unit"),
                                 fmt::join(names_of(facts.computes), ", "), facts.bf16_products);
  for (std::size_t i = 0; i < found.units.size(); ++i) {
    const device::Unit& unit = found.units[i];
    text +=
        fmt::format("    {}:{} {}, {}, {}\n", found.name, i, unit.name, human_bytes(unit.memory), unit.architecture);
  }
  return text;
}

/// A device in a library as JSON. Fields that all devices have, such as `memory`, are those of its first unit.
json::object json_of(const InLibrary& found) {
  const device::DeviceFacts facts = found.device == nullptr ? device::DeviceFacts{} : found.device->facts();
  json::array units;
  for (const device::Unit& unit : found.units) {
    units.push_back({{"name", unit.name}, {"memory", unit.memory}, {"architecture", unit.architecture}});
  }
  return {{"name", found.name},
          {"kind", found.name},
          {"memory", found.units.empty() ? json::value() : json::value(found.units.front().memory)},
          {"cores", nullptr},
          {"vectors", nullptr},
          {"computes", found.device == nullptr ? json::value() : json::value_from(names_of(facts.computes))},
          {"bf16_products", facts.bf16_products.empty() ? json::value() : json::value(facts.bf16_products)},
          {"addressable", false},
          {"units", std::move(units)},
          {"lacks", found.lacks.empty() ? json::value() : json::value(found.lacks)}};
}

std::string text_of(const device::Device& device) {
  const device::DeviceFacts facts = device.facts();
  const bool runs_jobs = device.stored(graph::DType::f32) == graph::DType::f32;
  return fmt::format("{} ({}){}\n    {}, {} available; {}; computes in {}; {}{} by the host\n", device.name(),
                     facts.kind, runs_jobs ? "" : ": only for 'shardrun verify' to compare with",
                     counted(facts.cores, "core"), facts.memory ? human_bytes(*facts.memory) : "unknown memory",
                     facts.vectors, fmt::join(names_of(facts.computes), ", "),
                     facts.bf16_products.empty() ? "" : fmt::format("bf16 products: {}; ", facts.bf16_products),
                     device.is_addressable() ? "addressable" : "not addressable");
}

json::object json_of(const device::Device& device) {
  const device::DeviceFacts facts = device.facts();
  return {{"name", device.name()},
          {"kind", facts.kind},
          {"memory", facts.memory ? json::value(*facts.memory) : json::value()},
          {"cores", facts.cores},
          {"vectors", facts.vectors},
          {"computes", json::value_from(names_of(facts.computes))},
          {"bf16_products", facts.bf16_products.empty() ? json::value() : json::value(facts.bf16_products)},
          {"addressable", device.is_addressable()}};
}

/// The devices that this rank, which another launcher started, can use on its host.
std::string text_of(const launch::World& world, const std::vector<InLibrary>& libraries) {
  std::string text = fmt::format("rank {} of {} on {}: ", world.rank, world.size, host_name());
  for (const InLibrary& library : libraries) {
    const std::size_t unit = static_cast<std::size_t>(world.local_rank.value_or(0));
    if (unit < library.units.size()) {
      text += fmt::format("{}:{} ({}) with [job] device = {}, or ", library.name, unit, library.units[unit].name,
                          library.name);
    }
  }
  return text + "the host's processor; other hosts' devices cannot be addressed from here\n";
}

json::object json_of(const launch::World& world, json::array devices) {
  return {{"rank", world.rank},
          {"world_size", world.size},
          {"local_rank", world.local_rank ? json::value(*world.local_rank) : json::value()},
          {"host", host_name()},
          {"devices", std::move(devices)}};
}

/// Lists the devices. Among ranks that another launcher started, each rank prints its own. The first rank of each host
/// also prints those of the host. With --json, every rank prints those of the host.
int list_devices(std::span<const std::string> words) {
  const Parsed parsed = parse("devices", words, {{.name = "json", .help = "print JSON"}}, 0, 0);
  if (parsed.help_shown) {
    return 0;
  }
  std::vector<InLibrary> libraries;
  for (const std::string_view name : device::library_devices()) {
    libraries.push_back(look_for(name));
  }
  json::array all;
  std::string text;
  for (const auto& device : device::Device::all()) {
    if (!device->has_units()) {
      all.push_back(json_of(*device));
      text += text_of(*device);
    }
  }
  for (const InLibrary& library : libraries) {
    all.push_back(json_of(library));
    text += text_of(library);
  }
  const std::optional<launch::World> world = launch::world_of();
  if (parsed.has("json")) {
    fmt::print("{}\n", world ? json::serialize(json_of(*world, std::move(all))) : json::serialize(all));
  } else {
    const bool is_first_here = !world || world->local_rank.value_or(0) == 0;
    fmt::print("{}{}", world ? text_of(*world, libraries) : "", is_first_here ? text : "");
  }
  return 0;
}

const RegisterCommand devices_command({.name = "devices",
                                       .arguments = "[--json]",
                                       .help = "the devices of this machine, and what they can do",
                                       .run = list_devices});

}  // namespace
}  // namespace shardrun::cli
