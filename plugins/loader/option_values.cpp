#include "plugins/loader/option_values.h"

#include <algorithm>
#include <string_view>

namespace shardrun::plugins {

std::vector<sr_option_value> raw_options(const OptionValues& values) {
  std::vector<sr_option_value> raw;
  for (const auto& [name, value] : values.entries()) {
    sr_option_value& option = raw.emplace_back();
    option.struct_size = sizeof(option);
    option.name = name.c_str();
    if (const auto* boolean = std::get_if<bool>(&value)) {
      option.type = SR_OPTION_BOOLEAN;
      option.integer = *boolean ? 1 : 0;
    } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      option.type = SR_OPTION_INTEGER;
      option.integer = *integer;
    } else if (const auto* number = std::get_if<double>(&value)) {
      option.type = SR_OPTION_NUMBER;
      option.number = *number;
    } else if (const auto* file = std::get_if<OptionFile>(&value)) {
      option.type = SR_OPTION_TEXT;
      option.text = file->path.c_str();
      option.contents = file->contents.c_str();
    } else {
      option.type = SR_OPTION_TEXT;
      option.text = std::get<std::string>(value).c_str();
    }
  }
  std::ranges::sort(raw, {}, [](const sr_option_value& option) { return std::string_view(option.name); });
  return raw;
}

}  // namespace shardrun::plugins
