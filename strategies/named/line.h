#pragma once

#include <shardrun/sdk/strategy.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "names.h"

namespace named {

using Dims = std::vector<std::vector<std::string>>;

struct RoleName {
  const char* name;
  shardrun::sdk::Role role;
};
inline constexpr RoleName roles[] = {{"store", shardrun::sdk::Role::store},
                                     {"use", shardrun::sdk::Role::use},
                                     {"gradient", shardrun::sdk::Role::gradient},
                                     {"optimizer", shardrun::sdk::Role::optimizer}};

/// One line of [sharding]: `key = value` or `key @role = value`, with a value such as `a,b | - | c`.
struct ParsedLine {
  std::string key;
  std::optional<shardrun::sdk::Role> role;
  Dims dims;  ///< for each dimension, the mesh axes that split it, major to minor
  std::string where;
};

[[noreturn]] inline void refuse(const ParsedLine& line, const std::string& why) {
  throw shardrun::sdk::InvalidJob(line.where + ": [sharding] " + line.key + ": " + why);
}

inline shardrun::sdk::Role role_named(const ParsedLine& line, const std::string& name) {
  std::vector<std::string> known;
  for (const RoleName& each : roles) {
    if (each.name == name) {
      return each.role;
    }
    known.emplace_back(each.name);
  }
  refuse(line, "there is no role '" + name + "'" + did_you_mean(name, known) + "; the roles are " + join(known));
}

inline std::vector<std::string> mesh_axes_of(const ParsedLine& line, const std::string& text) {
  if (text == "-") {
    return {};
  }
  std::vector<std::string> axes = split(text, ',');
  if (std::find_if(axes.begin(), axes.end(), [](const auto& axis) { return axis.empty() || axis == "-"; }) !=
      axes.end()) {
    refuse(line, "'" + text +
                     "' names no mesh axis where one is expected: write names with a comma between them, or - "
                     "for a dimension that stays whole");
  }
  return axes;
}

inline ParsedLine parse(const shardrun::sdk::Sharding& given) {
  ParsedLine line{.key = given.key, .where = given.where};
  const std::size_t at = given.key.find('@');
  if (at != std::string::npos) {
    line.key = trimmed(std::string_view(given.key).substr(0, at));
    line.role = role_named(line, std::string(trimmed(std::string_view(given.key).substr(at + 1))));
  }
  std::set<std::string> seen;
  for (const std::string& dim : split(given.value, '|')) {
    line.dims.push_back(mesh_axes_of(line, dim));
    for (const std::string& axis : line.dims.back()) {
      if (!seen.insert(axis).second) {
        refuse(line, "mesh axis '" + axis + "' stands there twice, and it can split a tensor once: leave one out");
      }
    }
  }
  return line;
}

}  // namespace named
