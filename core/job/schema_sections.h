#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/job/schema.h"

namespace shardrun::job {

// The sections that are declared in their own files.
[[nodiscard]] Section job_section();
[[nodiscard]] Section data_section();
[[nodiscard]] Section train_section();
[[nodiscard]] Section checkpoint_section();

/// Converts a value to its field's type. For an enumeration, the enumerator has the number of the choice.
template <class Field>
Field as(const OptionSpec& spec, const OptionValue& value) {
  if constexpr (std::is_enum_v<Field>) {
    const auto choice = std::find(spec.choices.begin(), spec.choices.end(), std::get<std::string>(value));
    return static_cast<Field>(choice - spec.choices.begin());
  } else if constexpr (std::is_same_v<Field, std::filesystem::path>) {
    return std::get<std::string>(value);
  } else if constexpr (std::is_same_v<Field, std::vector<std::filesystem::path>>) {
    const auto& elements = std::get<std::vector<std::string>>(value);
    return {elements.begin(), elements.end()};
  } else {
    return std::get<Field>(value);
  }
}

/// Makes a setter for a field of Job.
template <class Field>
auto into(Field Job::*field) {
  return [field](Job& job, const OptionSpec& spec, const OptionValue& value) { job.*field = as<Field>(spec, value); };
}

template <class Group, class Field>
auto into(Group Job::*group, Field Group::*field) {
  return [group, field](Job& job, const OptionSpec& spec, const OptionValue& value) {
    (job.*group).*field = as<Field>(spec, value);
  };
}

}  // namespace shardrun::job
