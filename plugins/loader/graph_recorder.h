#pragma once

#include <shardrun/model.h>
#include <shardrun/sdk/model/hub.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/options/options.h"
#include "plugins/loader/call.h"

namespace shardrun::plugins {

/// Checks a name that a model gives to something: users see the name, and it is a key in files. Returns it. Throws
/// Error{plugin}, whose message begins with `what`.
[[nodiscard]] std::string name_from(const char* text, std::string_view what);

/// Like name_from(), for a name that is also written in job files, patterns and on the command line: letters, digits
/// and `. _ - /`.
[[nodiscard]] std::string plain_name_from(const char* text, std::string_view what);

/// Converts a type. Throws Error{plugin} if no tensor can have it.
[[nodiscard]] graph::TensorType type_from(const sr_tensor_type* given);

/// The host's side of sr_state_writer. It adds states to a graph.
class StateRecorder final : public Recorder {
 public:
  explicit StateRecorder(graph::Graph& graph);

  [[nodiscard]] const sr_state_writer& writer() const noexcept { return writer_; }

  void add_state(const sr_state* state);
  void set_layers(std::uint32_t layers);

 private:
  graph::Graph& graph_;
  sr_state_writer writer_{};
};

/// The host's side of sr_config_reader.
class ConfigReading : public Recorder {
 public:
  /// `specs`: the model's options.
  explicit ConfigReading(const std::vector<OptionSpec>& specs);

  [[nodiscard]] const sr_config_reader& reader() const noexcept { return reader_; }
  [[nodiscard]] bool knows(const std::string& key) const { return known_.contains(key); }
  [[nodiscard]] const OptionValues& options() const noexcept { return options_; }

 private:
  const std::vector<OptionSpec>& specs_;
  OptionValues options_;
  std::set<std::string> known_;
  sr_config_reader reader_{};
};

/// The host's side of sr_config_writer.
class ConfigWriting : public Recorder {
 public:
  ConfigWriting();

  [[nodiscard]] const sr_config_writer& writer() const noexcept { return writer_; }
  [[nodiscard]] const std::vector<sdk::ConfigValue>& values() const noexcept { return values_; }

 private:
  void add(const sr_config_value* value);

  std::vector<sdk::ConfigValue> values_;
  sr_config_writer writer_{};
};

/// The host's side of sr_tensor_namer.
class NameRecorder : public Recorder {
 public:
  explicit NameRecorder(const graph::Graph& graph);

  [[nodiscard]] const sr_tensor_namer& namer() const noexcept { return namer_; }
  [[nodiscard]] const std::vector<sdk::TensorName>& names() const noexcept { return names_; }

 private:
  void add(const sr_tensor_name* name);

  const graph::Graph& graph_;
  std::vector<sdk::TensorName> names_;
  sr_tensor_namer namer_{};
};

}  // namespace shardrun::plugins
