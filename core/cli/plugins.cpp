#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>

#include "core/base/text.h"
#include "core/cli/options.h"
#include "plugins/loader/plugin.h"

namespace shardrun::cli {
namespace {

const char* type_name(OptionType type) noexcept {
  switch (type) {
    case OptionType::boolean: return "boolean";
    case OptionType::integer: return "integer";
    case OptionType::real: return "number";
    default: return "text";
  }
}

std::string describe(const OptionSpec& option) {
  std::string text = fmt::format("    {} ({}, {})", option.name, type_name(option.type),
                                 option.default_value ? "default " + *option.default_value
                                 : option.optional    ? "need not be set"
                                                      : "has to be set");
  if (option.minimum) {
    text += fmt::format(" from {}", *option.minimum);
  }
  if (option.maximum) {
    text += fmt::format(" to {}", *option.maximum);
  }
  if (!option.choices.empty()) {
    text += fmt::format(" one of {}{}", fmt::join(option.choices, ", "),
                        option.type == OptionType::choice_or_path ? " or a file" : "");
  }
  return text + fmt::format(": {}\n", option.help);
}

std::string describe(const plugins::PluginInfo& plugin) {
  if (!plugin.error.empty()) {
    return fmt::format("{} {} cannot be used\n    {}\n", plugin.kind, plugin.name.empty() ? "?" : plugin.name,
                       plugin.error);
  }
  std::string text =
      fmt::format("{} {} {} (ABI {}) {}\n", plugin.kind, plugin.name, plugin.version, plugin.abi, plugin.path.string());
  if (!plugin.shadowed_by.empty()) {
    text += fmt::format("    not used: {} is found first\n", plugin.shadowed_by.string());
  }
  text += plugin.reads_sharding ? "    takes what is split from the section [sharding]\n" : "";
  for (const OptionSpec& option : plugin.options) {
    text += describe(option);
  }
  for (const auto& [name, help] : plugin.ops) {
    text += fmt::format("    op {}: {}\n", name, help);
  }
  return text;
}

/// A number as JSON; whole numbers as integers.
boost::json::value json_of(double number) {
  const auto whole = static_cast<std::int64_t>(std::clamp(number, -1e15, 1e15));
  return static_cast<double>(whole) == number ? boost::json::value(whole) : boost::json::value(number);
}

boost::json::object json_of(const OptionSpec& option) {
  boost::json::object json = {
      {"name", option.name}, {"type", type_name(option.type)}, {"help", printable(option.help)}};
  if (option.default_value) {
    json["default"] = *option.default_value;
  }
  json["required"] = !option.default_value && !option.optional;
  if (option.minimum) {
    json["minimum"] = json_of(*option.minimum);
  }
  if (option.maximum) {
    json["maximum"] = json_of(*option.maximum);
  }
  if (!option.choices.empty()) {
    json["choices"] = boost::json::array(option.choices.begin(), option.choices.end());
    json["or_a_file"] = option.type == OptionType::choice_or_path;
  }
  return json;
}

boost::json::object json_of(const plugins::PluginInfo& plugin) {
  boost::json::object json = {{"kind", plugin.kind}, {"name", printable(plugin.name)}, {"file", plugin.path.string()}};
  if (!plugin.error.empty()) {
    json["error"] = printable(plugin.error);
    return json;
  }
  json["version"] = printable(plugin.version);
  json["abi"] = plugin.abi;
  if (!plugin.shadowed_by.empty()) {
    json["shadowed_by"] = plugin.shadowed_by.string();
  }
  json["reads_sharding"] = plugin.reads_sharding;
  boost::json::array options;
  for (const OptionSpec& option : plugin.options) {
    options.push_back(json_of(option));
  }
  json["options"] = std::move(options);
  boost::json::array ops;
  for (const auto& [name, help] : plugin.ops) {
    ops.push_back({{"name", printable(name)}, {"help", printable(help)}});
  }
  json["ops"] = std::move(ops);
  return json;
}

int list(std::span<const std::string> words) {
  if (const Command* two_words = command_of_two("plugins", words)) {
    return two_words->run(words.subspan(1));
  }
  const Parsed parsed = parse("plugins", words, {set_option(), {.name = "json", .help = "print JSON"}}, 0, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const plugins::Directories directories = directories_of(parsed, 0);
  const std::vector<plugins::PluginInfo> found = plugins::list_plugins(directories);
  if (parsed.has("json")) {
    boost::json::array all;
    for (const plugins::PluginInfo& plugin : found) {
      all.push_back(json_of(plugin));
    }
    fmt::print("{}\n", boost::json::serialize(all));
    return 0;
  }
  for (const plugins::PluginInfo& plugin : found) {
    fmt::print("{}", printable_lines(describe(plugin)));
  }
  if (found.empty()) {
    fmt::print("no plugin in\n");
    for (const std::filesystem::path& directory : directories) {
      fmt::print("    {}\n", printable(directory.string()));
    }
  }
  return 0;
}

const RegisterCommand plugins_command({.name = "plugins",
                                       .arguments = "[JOB.ini]",
                                       .help = "plugins that can be loaded, with their options",
                                       .run = list});

}  // namespace
}  // namespace shardrun::cli
