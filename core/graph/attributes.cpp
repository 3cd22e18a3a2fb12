#include "core/graph/attributes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/suggest.h"

namespace shardrun::graph {
namespace {

template <typename T>
const T& get(const Attributes& attributes, std::string_view name) {
  for (const auto& [key, value] : attributes.entries()) {
    if (key == name) {
      if (const T* held = std::get_if<T>(&value)) {
        return *held;
      }
      break;
    }
  }
  throw Error(ErrorCode::internal,
              fmt::format("attribute '{}' is missing or of another type in {}", name, to_string(attributes)));
}

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw Error(ErrorCode::shape_mismatch, fmt::format("attribute '{}' {}", name, why));
}

/// Names of the alternatives of Attributes::Scalar, in the order of AttributeSpec::Type.
constexpr const char* type_names[] = {"an integer", "a real number", "a text", "a list of real numbers",
                                      "a list of integers"};

void check_value(const AttributeSpec& spec, const Attributes::Scalar& value) {
  if (value.index() != static_cast<std::size_t>(spec.type)) {
    refuse(spec.name,
           fmt::format("is {}, expected {}", type_names[value.index()], type_names[static_cast<int>(spec.type)]));
  }
  if (const auto* integer = std::get_if<std::int64_t>(&value);
      integer != nullptr && (*integer < spec.minimum || *integer > spec.maximum)) {
    refuse(spec.name, fmt::format("is {}, expected {} to {}", *integer, spec.minimum, spec.maximum));
  }
  if (const auto* text = std::get_if<std::string>(&value);
      text != nullptr && !spec.choices.empty() && std::ranges::find(spec.choices, *text) == spec.choices.end()) {
    refuse(spec.name, fmt::format("is '{}', expected one of {}", *text, fmt::join(spec.choices, ", ")));
  }
  const auto* real = std::get_if<double>(&value);
  const auto* reals = std::get_if<std::vector<double>>(&value);
  if ((real != nullptr && !std::isfinite(*real)) ||
      (reals != nullptr && !std::ranges::all_of(*reals, [](double each) { return std::isfinite(each); }))) {
    refuse(spec.name, "is not finite");
  }
}

}  // namespace

void check_attributes(const std::vector<AttributeSpec>& specs, const Attributes& attributes) {
  for (const auto& [name, value] : attributes.entries()) {
    const auto spec = std::ranges::find(specs, name, &AttributeSpec::name);
    if (spec == specs.end()) {
      std::vector<std::string> known;
      for (const AttributeSpec& each : specs) {
        known.push_back(each.name);
      }
      refuse(name, fmt::format("is none that the op takes{}; it takes {}", did_you_mean(name, known),
                               known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
    }
    check_value(*spec, value);
  }
  for (const AttributeSpec& spec : specs) {
    if (!spec.optional && !attributes.has(spec.name)) {
      refuse(spec.name, "is missing");
    }
  }
}

bool has_fixed_order(const Attributes& attributes) noexcept {
  return attributes.has(fixed_order) && attributes.integer(fixed_order) != 0;
}

std::string describe(const AttributeSpec& spec) {
  std::string what = type_names[static_cast<int>(spec.type)];
  if (spec.minimum != std::numeric_limits<std::int64_t>::min()) {
    what += spec.maximum == std::numeric_limits<std::int64_t>::max()
                ? fmt::format(", at least {}", spec.minimum)
                : fmt::format(" from {} to {}", spec.minimum, spec.maximum);
  }
  if (!spec.choices.empty()) {
    what = fmt::format("{}", fmt::join(spec.choices, " or "));
  }
  return fmt::format("{}, {}{}: {}", spec.name, what, spec.optional ? ", may be left out" : "", spec.help);
}

std::int64_t Attributes::integer(std::string_view name) const { return get<std::int64_t>(*this, name); }
double Attributes::real(std::string_view name) const { return get<double>(*this, name); }
const std::string& Attributes::text(std::string_view name) const { return get<std::string>(*this, name); }
const std::vector<double>& Attributes::reals(std::string_view name) const {
  return get<std::vector<double>>(*this, name);
}
const std::vector<std::int64_t>& Attributes::integers(std::string_view name) const {
  return get<std::vector<std::int64_t>>(*this, name);
}

bool Attributes::has(std::string_view name) const noexcept {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.first == name; });
}

std::string to_string(const Attributes& attributes) {
  std::string text;
  for (const auto& [key, value] : attributes.entries()) {
    text += fmt::format("{}{}=", text.empty() ? "{" : ", ", key);
    std::visit([&](const auto& held) { text += fmt::format("{}", held); }, value);
  }
  return text.empty() ? text : text + "}";
}

}  // namespace shardrun::graph
