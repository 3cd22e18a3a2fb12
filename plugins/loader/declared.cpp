#include "plugins/loader/declared.h"

#include <fmt/format.h>

#include <limits>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/base/text.h"
#include "core/options/convert.h"
#include "plugins/loader/call.h"
#include "plugins/loader/manifest.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

std::string text_or_empty(const char* text) { return text != nullptr ? text : ""; }

/// Text that users type, which has to fit into a job file.
std::string typed_text(const char* text, std::string_view what) {
  std::string given = text_or_empty(text);
  if (const std::string shown = printable(given); shown != given) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} has '{}', with control characters or bytes that are no UTF-8", what, excerpt(shown)));
  }
  return given;
}

template <class Number>
void set_bounds(OptionSpec& spec, Number minimum, Number maximum) {
  using Limits = std::numeric_limits<Number>;
  if (minimum == Number{} && maximum == Number{}) {
    return;
  }
  if (minimum > Limits::lowest()) {
    spec.minimum = static_cast<double>(minimum);
  }
  if (maximum < Limits::max()) {
    spec.maximum = static_cast<double>(maximum);
  }
}

void add_aliases(OptionSpec& spec, const sr_option& raw, std::string_view what) {
  for (const std::string& alias : words_of(typed_text(raw.aliases, what))) {
    spec.aliases.emplace_back(alias);
  }
  for (std::uint32_t i = 0; i < raw.other_name_count; ++i) {
    const auto other = read_element<sr_alias>(raw.other_names, raw.other_name_stride, i, SR_ALIAS_SIZE_1_7,
                                              fmt::format("{}, other name {}", what, i));
    const std::string name = typed_text(other.name, what);
    const std::string note = printable(excerpt(text_or_empty(other.note)));
    if (other.choice == nullptr) {
      spec.aliases.emplace_back(name).note = note;
    } else {
      spec.choice_aliases.push_back({name, typed_text(other.choice, what), note});
    }
  }
}

OptionSpec spec_of(const sr_option& raw, std::string_view what) {
  OptionSpec spec;
  spec.name = typed_text(raw.name, what);
  spec.help = printable(excerpt(text_or_empty(raw.help)));
  spec.optional = (raw.flags & SR_OPTION_OPTIONAL) != 0;
  spec.minimum_excluded = (raw.flags & SR_OPTION_MINIMUM_EXCLUDED) != 0;
  spec.maximum_excluded = (raw.flags & SR_OPTION_MAXIMUM_EXCLUDED) != 0;
  add_aliases(spec, raw, what);
  OptionValue default_value;
  switch (raw.type) {
    case SR_OPTION_BOOLEAN:
      spec.type = OptionType::boolean;
      default_value = raw.default_integer != 0;
      break;
    case SR_OPTION_INTEGER:
      spec.type = OptionType::integer;
      default_value = raw.default_integer;
      set_bounds(spec, raw.min_integer, raw.max_integer);
      break;
    case SR_OPTION_NUMBER:
      spec.type = OptionType::real;
      default_value = raw.default_number;
      set_bounds(spec, raw.min_number, raw.max_number);
      break;
    case SR_OPTION_TEXT: {
      default_value = typed_text(raw.default_text, what);
      for (std::uint32_t i = 0; raw.choices != nullptr && i < raw.choice_count; ++i) {
        spec.choices.push_back(typed_text(raw.choices[i], what));
      }
      const bool may_be_file = (raw.flags & SR_OPTION_TEXT_FILE) != 0;
      if (may_be_file && spec.choices.empty()) {
        throw Error(ErrorCode::plugin,
                    fmt::format("{} may be a file and has no choices: its default must be one", what));
      }
      spec.type = spec.choices.empty() ? OptionType::text
                  : may_be_file        ? OptionType::choice_or_path
                                       : OptionType::choice;
      spec.names_transport = (raw.flags & SR_OPTION_TRANSPORT) != 0;
      break;
    }
    default:
      throw Error(ErrorCode::plugin,
                  fmt::format("{} has the type {}, which this shardrun does not know", what, raw.type));
  }
  if (!spec.optional && (raw.flags & SR_OPTION_REQUIRED) == 0) {
    spec.default_value = to_text(spec, default_value);
  }
  return spec;
}

}  // namespace

std::vector<OptionSpec> declared_options(const sr_plugin& table, std::string_view plugin) {
  std::vector<OptionSpec> specs;
  for (std::uint32_t i = 0; i < table.option_count; ++i) {
    const std::string what = fmt::format("{}: option {}", plugin, i);
    const OptionSpec spec =
        spec_of(read_element<sr_option>(table.options, table.option_stride, i, SR_OPTION_SIZE_1_0, what), what);
    if (!is_name(spec.name)) {
      throw Error(ErrorCode::plugin, fmt::format("{} is named '{}', expected [a-z][a-z0-9_]*", what, spec.name));
    }
    for (const OptionSpec& earlier : specs) {
      if (earlier.name == spec.name) {
        throw Error(ErrorCode::plugin, fmt::format("{} is named '{}' like an earlier one", what, spec.name));
      }
    }
    specs.push_back(spec);
  }
  try {
    static_cast<void>(checked_with_defaults(specs, {}));
  } catch (const Error& error) {
    throw Error(ErrorCode::plugin, fmt::format("{} declares a default that it refuses: {}", plugin, error.message()));
  }
  return specs;
}

}  // namespace shardrun::plugins
