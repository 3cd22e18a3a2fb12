#pragma once

#include <shardrun/model.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/graph/graph.h"
#include "plugins/loader/call.h"

namespace shardrun::plugins {

/// Checks a name that a model gives to something. It is shown to users, and is a key in files. Throws Error{plugin}
/// that begins with `what`.
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

}  // namespace shardrun::plugins
