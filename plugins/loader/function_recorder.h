#pragma once

#include <shardrun/model.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/graph/builder.h"
#include "plugins/loader/graph_recorder.h"

namespace shardrun::plugins {

/// The number by which a plugin knows a value: its id plus one.
[[nodiscard]] std::uint32_t value_number(graph::ValueId id);

/// The host's side of sr_function_writer. It adds what a model writes to a function of the graph.
class FunctionRecorder final : public Recorder {
 public:
  /// `rows`: the samples per call. `model`: the model whose own ops may be called.
  FunctionRecorder(graph::FunctionBuilder& builder, std::int64_t rows, std::string model);
  ~FunctionRecorder();

  [[nodiscard]] const sr_function_writer& writer() const noexcept { return writer_; }

  /// From now on the table refuses everything except `call` and `type_of`.
  void take_calls_only();

  /// The losses that the model has set. Values that it has not set do not exist.
  [[nodiscard]] const graph::Losses& losses() const noexcept { return losses_; }

  std::uint32_t input(const char* name, const sr_tensor_type* type);
  std::uint32_t state(const char* name);
  [[nodiscard]] std::vector<graph::ValueId> call(const sr_call* call);
  [[nodiscard]] const sr_tensor_type* type_of(std::uint32_t value);
  [[nodiscard]] std::vector<graph::ValueId> gradient(std::uint32_t scalar, const std::uint32_t* of,
                                                     std::uint32_t count);
  void cut_point(const char* name, std::uint32_t value);
  void set_layer(std::int32_t layer);
  void set_scope(const char* scope);
  void write(const char* state, std::uint32_t value);
  void output(const char* name, std::uint32_t value);
  void set_losses(std::uint32_t losses);
  void set_loss_counts(std::uint32_t counts);

 private:
  struct HeldType;

  [[nodiscard]] graph::ValueId value(std::uint32_t number) const;
  [[nodiscard]] std::vector<graph::ValueId> values(const std::uint32_t* numbers, std::uint32_t count) const;
  /// Throws Error{plugin} if a forward node would read a value of a later layer than the one that is being written.
  void require_earlier(graph::ValueId read) const;
  void set_functions();

  graph::FunctionBuilder& builder_;
  std::int64_t rows_;
  std::string model_;
  sr_function_writer writer_{};
  graph::Losses losses_;
  std::set<graph::StateId> written_;
  std::map<std::uint32_t, std::unique_ptr<HeldType>> types_;  ///< types for which the model has asked
};

}  // namespace shardrun::plugins
