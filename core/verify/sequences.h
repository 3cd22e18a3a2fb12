#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/compile/compile.h"
#include "core/graph/graph.h"
#include "core/infer/session.h"
#include "core/job/job.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

/// Records the sequences of a job that continues prompts: their tokens, and the logits that this rank computed.
class SequenceRecorder {
 public:
  void take(const infer::Computed& computed);
  /// Records the line of prompt `number` in its file, counted from 1, and its id as JSON; "" if it has none.
  void name(std::int64_t number, std::int64_t line, const std::string& id);
  /// Records that the ranks have drawn different tokens. Drops positions that not all ranks have computed. `least`:
  /// returns the smallest of all ranks' numbers, so all ranks must call part() together.
  void part(const std::function<std::int64_t(std::int64_t number)>& least);
  /// Writes a snapshot for each sequence, as if a step of its own had computed it. Throws Error{io}.
  void write(const std::filesystem::path& folder, std::int64_t rank) const;

 private:
  struct Recorded {
    Workload::Sequence sequence;
    std::vector<float> logits;  ///< [kept, vocab]
  };

  std::map<std::int64_t, Recorded> recorded_;                           ///< by the number of the prompt, counted from 1
  std::map<std::int64_t, std::pair<std::int64_t, std::string>> lines_;  ///< line and id, by the same number
  bool has_parted_ = false;
};

/// The name of the state with the logits of a prompt. `number`: counted from 1.
[[nodiscard]] std::string sequence_name(std::int64_t number);

/// The sequences of the snapshots that the first rank has written. Throws Error{io, data}.
[[nodiscard]] std::vector<Workload::Sequence> read_sequences(const std::filesystem::path& folder);
/// Whether the ranks have drawn different tokens. REQUIRES: the first rank has written a sequence.
[[nodiscard]] bool have_parted(const std::filesystem::path& folder);

/// The reference's graph, in which a function for each sequence computes the logits of all its kept positions at once.
[[nodiscard]] graph::Graph graph_of_sequences(const job::Job& job, const compile::Compiled& compiled,
                                              const std::vector<Workload::Sequence>& sequences);

}  // namespace shardrun::verify
