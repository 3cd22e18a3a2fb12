#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/options/options.h"

namespace shardrun {

/// Where a value is written, for messages: for example "job.ini:12" and "[train] steps".
struct SettingPlace {
  std::string where;
  std::string setting;
};

/// `path` without '.' and '..'. The path stays unchanged if removing them would lead to another file, because after a
/// link to a folder, '..' means the parent of the folder to which the link points.
[[nodiscard]] std::filesystem::path normal_path(const std::filesystem::path& path);

/// Parses `text` and checks the value against `spec`. Paths are made absolute by `folder`; if it is empty, relative
/// paths stay relative. Reads no file. Throws Error{job}.
[[nodiscard]] OptionValue convert(const OptionSpec& spec, std::string_view text, const SettingPlace& place,
                                  const std::filesystem::path& folder);

/// A text from which convert() makes `value` again. Equal values have equal text.
[[nodiscard]] std::string to_text(const OptionSpec& spec, const OptionValue& value);

/// The values that `spec` accepts, as text: "an integer, at least 1", "one of adamw, sgd".
[[nodiscard]] std::string accepted(const OptionSpec& spec);

}  // namespace shardrun
