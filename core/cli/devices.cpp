#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <vector>

#include "core/cli/options.h"
#include "core/device/device.h"
#include "core/metrics/human.h"

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

std::string text_of(const device::Device& device) {
  const device::DeviceFacts facts = device.facts();
  const bool runs_jobs = device.stored(graph::DType::f32) == graph::DType::f32;
  return fmt::format("{} ({}){}\n    {}, {} available; {}; computes in {}; {}{} by the host\n", device.name(),
                     facts.kind, runs_jobs ? "" : ": only for 'shardrun verify' to compare with",
                     metrics::counted(facts.cores, "core"),
                     facts.memory ? metrics::human_bytes(*facts.memory) : "unknown memory", facts.vectors,
                     fmt::join(names_of(facts.computes), ", "),
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

int list_devices(std::span<const std::string> words) {
  const Parsed parsed = parse("devices", words, {{.name = "json", .help = "print JSON"}}, 0, 0);
  if (parsed.help_shown) {
    return 0;
  }
  json::array all;
  for (const auto& device : device::Device::all()) {
    if (parsed.has("json")) {
      all.push_back(json_of(*device));
    } else {
      fmt::print("{}", text_of(*device));
    }
  }
  if (parsed.has("json")) {
    fmt::print("{}\n", json::serialize(all));
  }
  return 0;
}

const RegisterCommand devices_command({.name = "devices",
                                       .arguments = "[--json]",
                                       .help = "the devices of this program, and what they can do",
                                       .run = list_devices});

}  // namespace
}  // namespace shardrun::cli
