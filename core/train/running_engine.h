#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/runtime/array_collectives.h"
#include "core/runtime/executor.h"
#include "core/train/rank_link.h"

namespace shardrun::train {

/// This rank's engine, with its parameters in the arena.
class RunningEngine {
 public:
  /// Connects ranks that exchange messages, sets the parameters' first values, makes the engine, and lets it load [job]
  /// checkpoint. All ranks construct it at the same point. The arguments outlive it. REQUIRES: compiled.engine is set,
  /// and `link` is connected.
  RunningEngine(const job::Job& job, const compile::Compiled& compiled, RankLink& link, runtime::Executor& executor);
  RunningEngine(const RunningEngine&) = delete;
  RunningEngine& operator=(const RunningEngine&) = delete;
  ~RunningEngine();

  [[nodiscard]] runtime::ArrayCollectives& ranks() noexcept { return *ranks_; }
  [[nodiscard]] plugins::EngineInstance& instance() noexcept { return *instance_; }

 private:
  void set_first_values(const job::Job& job, const compile::Compiled& compiled, runtime::Executor& executor);
  void load(const std::filesystem::path& checkpoint, const std::vector<plugins::EngineParameter>& own);

  std::unique_ptr<runtime::ArrayCollectives> ranks_;
  std::unique_ptr<plugins::EngineInstance> instance_;
};

/// This rank's part of the state named `prefix` + the parameter's name, in the arena. Null address: no such state.
[[nodiscard]] plugins::NamedArray array_in_arena(const plugins::EngineParameter& parameter, const std::string& prefix,
                                                 const graph::Graph& graph, const runtime::Executor& executor);

}  // namespace shardrun::train
