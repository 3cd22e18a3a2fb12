#pragma once

#include <shardrun/model.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/graph/graph.h"

namespace shardrun::plugins {

/// A text that a model gives a thing. It is shown, and is a key in files. Throws Error{plugin} that begins with `what`.
[[nodiscard]] std::string name_from(const char* text, std::string_view what);

/// A name that job files, patterns and the command line write too: letters, digits and `. _ - /`.
[[nodiscard]] std::string plain_name_from(const char* text, std::string_view what);

/// Throws Error{plugin} for a type that no tensor has.
[[nodiscard]] graph::TensorType type_from(const sr_tensor_type* given);

/// What the host's sides of both writers share: they refuse what is invalid, and keep the first refusal, so that a
/// model cannot ignore it.
class GraphRecorder {
 public:
  GraphRecorder() = default;
  GraphRecorder(const GraphRecorder&) = delete;
  GraphRecorder& operator=(const GraphRecorder&) = delete;

  /// The first refusal, if there was one: Error{job} for a tensor that is too large, otherwise Error{plugin}.
  [[nodiscard]] const std::optional<Error>& refusal() const noexcept { return refusal_; }

  /// Runs a function of the writer, and keeps what it throws.
  std::int32_t recorded(sr_error* error, std::string_view function, const char* item,
                        const std::function<void()>& act) noexcept;

 private:
  std::optional<Error> refusal_;
};

/// Runs a function of a writer whose `self` is a Recorder.
template <class Recorder, class Act>
std::int32_t record_in(void* self, sr_error* error, std::string_view function, const char* item, Act act) noexcept {
  auto& recorder = *static_cast<Recorder*>(self);
  return recorder.recorded(error, function, item, [&] { act(recorder); });
}

/// The host's side of sr_state_writer. It adds states to a graph.
class StateRecorder final : public GraphRecorder {
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
