#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
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
  /// Writes the rank's snapshot of each sequence, at the end of a step of its own. Throws Error{io}.
  void write(const std::filesystem::path& folder, std::int64_t rank) const;

 private:
  struct Recorded {
    Workload::Sequence sequence;
    std::vector<float> logits;  ///< [kept, vocab]
  };

  std::map<std::int64_t, Recorded> recorded_;  ///< by the number of the prompt, counted from 1
};

/// The sequences of the snapshots that the first rank has written.
[[nodiscard]] std::vector<Workload::Sequence> read_sequences(const std::filesystem::path& folder);

/// The graph that the logits of sequences are compared with: it reads each sequence at once.
[[nodiscard]] graph::Graph graph_of_sequences(const job::Job& job, const compile::Compiled& compiled,
                                              const std::vector<Workload::Sequence>& sequences);

}  // namespace shardrun::verify
