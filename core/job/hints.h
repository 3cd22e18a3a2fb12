#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/options/options.h"

namespace shardrun::job {

/// A section and the keys that it accepts.
struct KnownKeys {
  std::string section;
  std::vector<OptionSpec> specs;
};

/// Every section of the schema that has fixed keys.
[[nodiscard]] std::vector<KnownKeys> known_keys();

// Each function returns a text to put after the name that an error is about, such as " (did you mean 'steps'?)", or "".
// It always finds a known name if only case and separators differ, or if other programs use the given name for it.

/// `specs`: the keys of `section`; `elsewhere` can contain them, too.
[[nodiscard]] std::string hint_for_key(std::string_view section, std::string_view key,
                                       const std::vector<OptionSpec>& specs, const std::vector<KnownKeys>& elsewhere);
[[nodiscard]] std::string hint_for_section(std::string_view name);

}  // namespace shardrun::job
