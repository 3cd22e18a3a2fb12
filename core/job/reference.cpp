#include "core/job/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/job/raw.h"
#include "core/job/schema.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

constexpr std::size_t page_width = 100;

std::string syntax() {
  return fmt::format(
      "A job file is UTF-8 text of at most {} KiB, with lines of at most {} KiB that end in LF or CRLF. A byte order "
      "mark at its start is skipped. A line is a [section] header, key = value, or empty. ; and # begin a comment at "
      "the start of a line and after white space. A value that contains \" ;\" or \" #\", or begins or ends with white "
      "space, is written in double quotes; \"\" stands for a quote within. In a list, a backslash makes the separator "
      "part of an element. Sections and keys are written once. An unknown name, a value out of range and a setting "
      "without effect are refused. The error has the nearest name, or ours for a name that other programs use.",
      max_file_bytes >> 10U, max_line_bytes >> 10U);
}

constexpr std::string_view includes =
    "include = base.ini before the first section brings in another file's settings. There may be several such lines, "
    "and included files may include others. A key of the file itself replaces an included one, and a later include "
    "replaces an earlier one. New keys of a section come after the included ones.";

constexpr std::string_view paths =
    "Relative paths start in the folder of the file that contains them, also in an included file. Those of --set, and "
    "[job] output, start in the working directory.";

constexpr std::string_view overrides =
    "--set section.key=value replaces what the file says, or adds to it. The value is taken literally, without quotes "
    "and comments. Each key can be set once.";

std::string wrapped(std::string_view text, std::size_t indent) {
  const std::string margin(indent, ' ');
  std::string result;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (column > 0 && indent + column + 1 + end > page_width) {
      result += '\n';
      column = 0;
    }
    result += column == 0 ? margin : " ";
    result += text.substr(0, end);
    column += end + (column == 0 ? 0 : 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result + '\n';
}

std::string default_text(const OptionSpec& spec, std::string_view note) {
  if (!note.empty()) {
    return std::string(note);
  }
  if (spec.default_value) {
    return *spec.default_value;
  }
  return spec.optional ? "none" : "required";
}

std::string describe(const OptionSpec& spec, std::string_view note) {
  const std::string default_ = default_text(spec, note);
  const std::string_view label = default_ == "required" ? "" : "default ";
  return fmt::format("  {:<20}{}; {}{}\n{}", spec.name, accepted(spec), label, default_, wrapped(spec.help, 6));
}

/// The rules about a section, one sentence each.
std::vector<std::string> sentences(const Section& section) {
  const auto named = [&](const KeyName& name) { return name.section == section.name ? name.key : to_string(name); };
  std::vector<std::string> result;
  if (!section.tasks.empty()) {
    result.push_back(fmt::format("Only with [job] task = {}.", fmt::join(section.tasks, " or ")));
  }
  std::vector<std::string> of_models;
  for (const KeyName& name : rules().of_models) {
    if (name.section == section.name) {
      of_models.push_back(name.key);
    }
  }
  if (!of_models.empty()) {
    result.push_back(fmt::format("{} refused with [job] engine, where it has no effect.",
                                 of_models.front().empty() ? "The section is"
                                 : of_models.size() == 1   ? of_models.front() + " is"
                                                           : fmt::format("Each of {} is", fmt::join(of_models, ", "))));
  }
  for (const KeysOfSection& rule : rules().exclusive) {
    if (rule.section == section.name) {
      result.push_back(fmt::format("At most one of {} is given.", fmt::join(rule.keys, ", ")));
    }
  }
  for (const KeysOfSection& rule : rules().content) {
    if (rule.section == section.name) {
      result.push_back(fmt::format("At least one of {} is given.", fmt::join(rule.keys, ", ")));
    }
  }
  for (const NeedRule& rule : rules().need) {
    if (rule.key.section == section.name) {
      std::vector<std::string> others;
      std::ranges::transform(rule.others, std::back_inserter(others), named);
      result.push_back(fmt::format("{} needs {}.", named(rule.key), fmt::join(others, " or ")));
    }
  }
  for (const OrderRule& rule : rules().order) {
    if (rule.smaller.section == section.name) {
      result.push_back(fmt::format("{} is at most {}.", named(rule.smaller), named(rule.larger)));
    }
  }
  for (const EffectRule& rule : rules().effect) {
    if (rule.key.section == section.name) {
      const std::string refused =
          rule.harmless ? fmt::format("{} other than {}", named(rule.key), *rule.harmless) : named(rule.key);
      result.push_back(
          rule.value ? fmt::format("{} is refused with {} = {}{}, where it has no effect.", refused, named(rule.other),
                                   *rule.value, rule.of_models ? " of a model" : "")
                     : fmt::format("{} is refused without {}, where it has no effect.", refused, named(rule.other)));
    }
  }
  return result;
}

constexpr std::string_view table_head = "\n| key | accepts | default | meaning |\n|---|---|---|---|\n";

std::string markdown_row(const OptionSpec& spec, std::string_view note) {
  const std::string default_ = default_text(spec, note);
  const bool is_value = spec.default_value || !note.empty();
  return fmt::format("| `{}` | {} | {} | {} |\n", spec.name, accepted(spec),
                     is_value ? fmt::format("`{}`", default_) : default_, spec.help);
}

std::string markdown_section(const Section& section) {
  std::string text = fmt::format("\n## [{}]\n\n{}\n", section.name, section.help);
  text += section.settings.empty() ? "" : table_head;
  for (const Setting& setting : section.settings) {
    text += markdown_row(setting.spec, setting.default_note);
  }
  const std::vector<std::string> rules_here = sentences(section);
  if (!rules_here.empty()) {
    text += "\n";
  }
  for (const std::string& sentence : rules_here) {
    text += fmt::format("- {}\n", sentence);
  }
  if (!section.of_axis.empty()) {
    text += fmt::format("\n### [{}.AXIS]\n{}", section.name, table_head);
  }
  for (const OptionSpec& spec : section.of_axis) {
    text += markdown_row(spec, {});
  }
  return text;
}

}  // namespace

std::string options_reference(const std::vector<OptionSpec>& specs) {
  std::string text;
  for (const OptionSpec& spec : specs) {
    text += describe(spec, {});
  }
  return text;
}

std::string job_reference() {
  std::string text = fmt::format("{}\n{}\n{}\n{}", wrapped(syntax(), 0), wrapped(includes, 0), wrapped(paths, 0),
                                 wrapped(overrides, 0));
  for (const Section& section : schema()) {
    text += "\n" + section_reference(section.name);
  }
  return text;
}

std::string section_reference(std::string_view name) {
  const auto found = std::ranges::find(schema(), name, &Section::name);
  if (found == schema().end()) {
    return "";
  }
  std::string text = fmt::format("[{}]\n{}", found->name, wrapped(found->help, 2));
  for (const Setting& setting : found->settings) {
    text += describe(setting.spec, setting.default_note);
  }
  for (const std::string& sentence : sentences(*found)) {
    text += wrapped(sentence, 2);
  }
  if (!found->of_axis.empty()) {
    text += fmt::format("\n[{}.AXIS]\n{}", found->name, options_reference(found->of_axis));
  }
  return text;
}

std::string job_reference_markdown() {
  std::string text = fmt::format(
      "# The job file\n\nWritten by `shardrun help job --markdown` from the schema that checks job files; change it "
      "there.\n\n{}\n\n{}\n\n{}\n\n{}\n",
      syntax(), includes, paths, overrides);
  for (const Section& section : schema()) {
    text += markdown_section(section);
  }
  return text;
}

}  // namespace shardrun::job
