#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shardrun {

/// The name in lower case, without white space, '-', '_' and '.', for comparing names.
[[nodiscard]] std::string folded(std::string_view name);

/// The candidate that differs from `name` only in case and separators. If there is none, the nearest candidate by edit
/// distance (insert, delete, replace, swap of neighbours). Empty if the nearest one's distance is more than 1 and more
/// than a third of the longer name. Of equally near candidates, the first.
[[nodiscard]] std::string_view nearest_name(std::string_view name, std::span<const std::string> candidates);

/// A hint " (did you mean 'x'?)", or nothing if no candidate is near.
[[nodiscard]] std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace shardrun
