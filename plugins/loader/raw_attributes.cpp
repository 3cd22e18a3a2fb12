#include "plugins/loader/raw_attributes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>

#include "plugins/loader/call.h"
#include "plugins/loader/graph_recorder.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

/// The list of values of an `sr_attribute`.
template <typename T>
std::vector<T> list_from(const T* values, std::uint32_t count, const std::string& name) {
  if (values == nullptr && count > 0) {
    refuse_with(fmt::format("the attribute '{}' has {} numbers and none is given", name, count));
  }
  return std::vector<T>(values, values + count);
}

graph::Attributes::Scalar attribute_from(const sr_attribute& raw, const std::string& name) {
  switch (raw.type) {
    case SR_ATTRIBUTE_INTEGER: return raw.integer;
    case SR_ATTRIBUTE_NUMBER: return raw.number;
    case SR_ATTRIBUTE_TEXT: return std::string(raw.text != nullptr ? raw.text : "");
    case SR_ATTRIBUTE_NUMBERS: return list_from(raw.numbers, raw.count, name);
    case SR_ATTRIBUTE_INTEGERS: return list_from(raw.integers, raw.count, name);
    default: refuse_with(fmt::format("the attribute '{}' has the type {}, which there is not", name, raw.type));
  }
}

sr_attribute raw_attribute(const std::string& name, const graph::Attributes::Scalar& value) {
  sr_attribute raw{};
  raw.struct_size = sizeof(raw);
  raw.name = name.c_str();
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    raw.type = SR_ATTRIBUTE_INTEGER;
    raw.integer = *integer;
  } else if (const auto* number = std::get_if<double>(&value)) {
    raw.type = SR_ATTRIBUTE_NUMBER;
    raw.number = *number;
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    raw.type = SR_ATTRIBUTE_TEXT;
    raw.text = text->c_str();
  } else if (const auto* numbers = std::get_if<std::vector<double>>(&value)) {
    raw.type = SR_ATTRIBUTE_NUMBERS;
    raw.numbers = numbers->data();
    raw.count = static_cast<std::uint32_t>(numbers->size());
  } else {
    const auto& integers = std::get<std::vector<std::int64_t>>(value);
    raw.type = SR_ATTRIBUTE_INTEGERS;
    raw.integers = integers.data();
    raw.count = static_cast<std::uint32_t>(integers.size());
  }
  return raw;
}

}  // namespace

graph::Attributes attributes_from(const sr_attribute* attributes, std::uint32_t count, std::uint32_t stride) {
  graph::Attributes read;
  for (std::uint32_t a = 0; a < count; ++a) {
    const std::string what = fmt::format("attribute {}", a);
    const auto raw = read_element<sr_attribute>(attributes, stride, a, SR_ATTRIBUTE_SIZE_1_7, what);
    const std::string name = name_from(raw.name, what);
    if (read.has(name)) {
      refuse_with(fmt::format("the attribute '{}' is given twice", name));
    }
    read.add(name, attribute_from(raw, name));
  }
  return read;
}

std::vector<sr_attribute> raw_attributes(const std::vector<graph::AttributeSpec>& declared,
                                         const graph::Attributes& attributes) {
  std::vector<sr_attribute> raw;
  for (const graph::AttributeSpec& spec : declared) {
    const auto given =
        std::ranges::find(attributes.entries(), spec.name, &std::pair<std::string, graph::Attributes::Scalar>::first);
    raw.push_back(raw_attribute(given->first, given->second));
  }
  return raw;
}

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
