#include "core/bench/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/sdk/transport/op.hpp>

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/base/suggest.h"

namespace shardrun::bench {
namespace {

constexpr std::uint64_t largest_size = std::uint64_t{1} << 40U;

struct Name {
  std::string name;
  std::uint32_t number;
};

std::vector<Name> op_names() {
  std::vector<Name> names;
  for (const sdk::OpcodeTraits& traits : sdk::opcodes) {
    if (traits.opcode != SR_OP_RECV) {
      names.push_back({traits.opcode == SR_OP_SEND ? "send_recv" : std::string(traits.name), traits.opcode});
    }
  }
  return names;
}

std::vector<Name> dtype_names() {
  std::vector<Name> names;
  for (const sdk::DtypeTraits& traits : sdk::dtypes) {
    names.push_back({std::string(traits.name), traits.dtype});
  }
  return names;
}

std::vector<Name> reduction_names() {
  std::vector<Name> names;
  for (const sdk::ReductionTraits& traits : sdk::reductions) {
    names.push_back({std::string(traits.name), traits.reduction});
  }
  return names;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(end + 1);
  }
}

/// Shortens the name of an element type: "bfloat16" to "bf16", "int32" to "i32". Other names are unchanged.
std::string short_name(std::string_view name) {
  std::string made(name);
  for (const std::string_view kind : {"float", "uint", "int"}) {
    if (const std::size_t at = made.find(kind); at != std::string::npos) {
      return made.replace(at, kind.size(), kind.substr(0, 1));
    }
  }
  return made;
}

std::vector<std::uint32_t> parse_names(std::string_view option, std::string_view text, const std::vector<Name>& known) {
  std::vector<std::uint32_t> numbers;
  std::vector<std::string> names;
  for (const Name& each : known) {
    names.push_back(each.name);
    if (text == "all") {
      numbers.push_back(each.number);
    }
  }
  if (!numbers.empty()) {
    return numbers;
  }
  for (const std::string_view part : split(text, ',')) {
    const auto found = std::ranges::find(known, part, &Name::name);
    if (found == known.end()) {
      throw Error(ErrorCode::usage, fmt::format("--{}: there is no '{}'{}; expected all, or some of {}", option, part,
                                                did_you_mean(short_name(part), names), fmt::join(names, ",")));
    }
    if (std::ranges::find(numbers, found->number) == numbers.end()) {
      numbers.push_back(found->number);
    }
  }
  return numbers;
}

[[noreturn]] void refuse_size(std::string_view text, std::string_view why) {
  throw Error(ErrorCode::usage,
              fmt::format("--sizes: '{}' {}; expected sizes such as 8, 4K, 64M, up to 1024G, with commas between them, "
                          "or ranges such as 1K-64M",
                          text, why));
}

std::uint64_t parse_size(std::string_view text) {
  std::uint64_t size = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (fault != std::errc() || size == 0 || size > largest_size) {
    refuse_size(text, "is no size");
  }
  std::string unit(end, text.data() + text.size());
  std::ranges::transform(unit, unit.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  for (const std::string_view ending : {"IB", "B"}) {
    if (unit.ends_with(ending)) {
      unit.resize(unit.size() - ending.size());
      if (ending == "IB" && unit.empty()) {
        refuse_size(text, "has no such unit");
      }
      break;
    }
  }
  constexpr std::string_view units = "KMG";
  const std::size_t power = unit.empty() ? 0 : units.find(unit) + 1;
  if (unit.size() > 1 || (!unit.empty() && power == 0)) {
    refuse_size(text, "has no such unit");
  }
  for (std::size_t i = 0; i < power; ++i) {
    size *= 1024;
    if (size > largest_size) {
      refuse_size(text, "is too large");
    }
  }
  return size;
}

std::string_view name_of(const auto& table, std::uint32_t number, auto member) {
  for (const auto& each : table) {
    if (each.*member == number) {
      return each.name;
    }
  }
  return "?";
}

}  // namespace

std::vector<std::uint64_t> parse_sizes(std::string_view text, std::uint64_t factor) {
  std::vector<std::uint64_t> sizes;
  for (const std::string_view part : split(text, ',')) {
    const std::vector<std::string_view> ends = split(part, '-');
    if (ends.size() > 2) {
      refuse_size(part, "is no range");
    }
    const std::uint64_t least = parse_size(ends.front());
    const std::uint64_t most = parse_size(ends.back());
    if (most < least) {
      refuse_size(part, "ends before it begins");
    }
    for (std::uint64_t size = least; size <= most; size *= factor) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

std::vector<std::uint32_t> parse_ops(std::string_view text) { return parse_names("op", text, op_names()); }
std::vector<std::uint32_t> parse_dtypes(std::string_view text) { return parse_names("dtype", text, dtype_names()); }
std::vector<std::uint32_t> parse_reductions(std::string_view text) {
  return parse_names("redop", text, reduction_names());
}

bool needs_peer(std::uint32_t opcode) noexcept { return opcode == SR_OP_SEND; }
bool reduces(std::uint32_t opcode) noexcept { return sdk::find_opcode(opcode)->reduces; }

std::string_view op_name(std::uint32_t opcode) {
  return opcode == SR_OP_SEND ? "send_recv" : name_of(sdk::opcodes, opcode, &sdk::OpcodeTraits::opcode);
}
std::string_view dtype_name(std::uint32_t dtype) { return name_of(sdk::dtypes, dtype, &sdk::DtypeTraits::dtype); }
std::string_view reduction_name(std::uint32_t reduction) {
  return name_of(sdk::reductions, reduction, &sdk::ReductionTraits::reduction);
}

std::string to_text(const Settings& settings) {
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {}", settings.transport, settings.ranks, settings.opcodes,
                                 settings.sizes, settings.dtypes, settings.reductions, settings.iterations.value_or(-1),
                                 settings.warm_up.value_or(-1), static_cast<int>(settings.places), settings.timeout);
  for (const auto& [key, value] : settings.options) {
    text += fmt::format(" {}={}", key, value);
  }
  return text;
}

}  // namespace shardrun::bench
