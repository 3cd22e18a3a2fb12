#include "plugins/loader/graph_recorder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

constexpr std::uint32_t most_dimensions_there = 8;

/// A text from the plugin, safe to print. Throws Error{plugin} if the text is empty.
std::string text_from(const char* text, const char* what) {
  if (text == nullptr || *text == '\0') {
    refuse_with(fmt::format("{} is empty", what));
  }
  return printable(excerpt(text));
}

/// Throws Error{plugin} unless the key is words joined by dots. Words after the first can be indices of lists.
void require_key(const std::string& key) {
  constexpr std::size_t most_digits = 4;
  std::size_t begin = 0;
  while (begin <= key.size()) {
    const std::size_t end = std::min(key.find('.', begin), key.size());
    const std::string word = key.substr(begin, end - begin);
    const bool is_place = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    if (word.empty() || (is_place && (begin == 0 || word.size() > most_digits))) {
      refuse_with(fmt::format("'{}' is not a key: expected words and places in lists, joined by dots", printable(key)));
    }
    begin = end + 1;
  }
}

/// The number of elements of a part. Throws Error{plugin} if the shape has no such part.
std::int64_t elements_of(const sdk::TensorPart& part, const std::vector<std::int64_t>& shape, const std::string& what) {
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 1 || shape[d] > graph::max_elements / elements) {
      refuse_with(fmt::format("{} has shape [{}]", what, fmt::join(shape, ", ")));
    }
    elements *= shape[d];
  }
  if (part.size == 0 && part.first == 0) {
    return elements;
  }
  if (part.dim >= shape.size() || part.first < 0 || part.size < 1 || part.size > shape[part.dim] - part.first) {
    refuse_with(fmt::format("{} is [{}], and has no indices {} to {} in dimension {}", what, fmt::join(shape, ", "),
                            part.first, part.first + part.size - 1, part.dim));
  }
  return elements / shape[part.dim] * part.size;
}

}  // namespace

ConfigReading::ConfigReading(const std::vector<OptionSpec>& specs) : specs_(specs) {
  reader_.struct_size = sizeof(reader_);
  reader_.self = this;
  reader_.set_option = [](void* self, const char* name, const char* value, sr_error* error) {
    return record_in<ConfigReading>(self, error, "set_option", name, [&](ConfigReading& to) {
      const std::string option = text_from(name, "the name");
      to.options_.set(option, read_option(to.specs_, option, value != nullptr ? value : ""));
    });
  };
  reader_.know = [](void* self, const char* key, sr_error* error) {
    return record_in<ConfigReading>(self, error, "know", key,
                                    [&](ConfigReading& to) { to.known_.insert(key != nullptr ? key : ""); });
  };
}

ConfigWriting::ConfigWriting() {
  writer_.struct_size = sizeof(writer_);
  writer_.self = this;
  writer_.add = [](void* self, const sr_config_value* value, sr_error* error) {
    return record_in<ConfigWriting>(self, error, "add", value != nullptr ? value->key : nullptr,
                                    [&](ConfigWriting& to) { to.add(value); });
  };
}

void ConfigWriting::add(const sr_config_value* value) {
  const sdk::ConfigValue added =
      sdk::detail::read(read_struct<sr_config_value>(value, SR_CONFIG_VALUE_SIZE_1_9, "the value"));
  require_key(added.key);
  if (added.type < SR_CONFIG_NULL || added.type > SR_CONFIG_TEXT) {
    refuse_with(fmt::format("there is no type {}", added.type));
  }
  if (std::ranges::find(values_, added.key, &sdk::ConfigValue::key) != values_.end()) {
    refuse_with("there is a value of that key already");
  }
  values_.push_back(added);
}

NameRecorder::NameRecorder(const graph::Graph& graph) : graph_(graph) {
  namer_.struct_size = sizeof(namer_);
  namer_.self = this;
  namer_.add = [](void* self, const sr_tensor_name* name, sr_error* error) {
    return record_in<NameRecorder>(self, error, "add", name != nullptr ? name->name : nullptr,
                                   [&](NameRecorder& to) { to.add(name); });
  };
}

void NameRecorder::add(const sr_tensor_name* name) {
  const auto raw = read_struct<sr_tensor_name>(name, SR_TENSOR_NAME_SIZE_1_9, "the name");
  if (raw.rank > most_dimensions_there || (raw.rank > 0 && raw.shape == nullptr)) {
    refuse_with(fmt::format("the tensor has {} dimensions, expected at most {}, with their sizes", raw.rank,
                            most_dimensions_there));
  }
  const sdk::TensorName added = sdk::detail::read(raw);
  static_cast<void>(text_from(added.name.c_str(), "the name"));
  if (!added.state.empty()) {
    const graph::StateId id = graph_.find_state(added.state);
    if (!id.exists()) {
      std::vector<std::string> states;
      std::ranges::transform(graph_.states, std::back_inserter(states), &graph::State::name);
      refuse_with(fmt::format("there is no state '{}'{}", printable(added.state), did_you_mean(added.state, states)));
    }
    const std::int64_t there = elements_of(added.part, added.shape, "the tensor there");
    const std::int64_t here = elements_of(added.state_part, graph_.states[id].type.shape, "the state");
    if (there != here) {
      refuse_with(fmt::format("it has {} elements there, and {} in the state", there, here));
    }
    if (added.transposed && added.shape.size() != 2) {
      refuse_with(fmt::format("it is transposed and has {} dimensions, expected 2", added.shape.size()));
    }
  }
  names_.push_back(added);
}

}  // namespace shardrun::plugins
