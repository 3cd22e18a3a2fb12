#include "core/graph/attributes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"

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

}  // namespace

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
