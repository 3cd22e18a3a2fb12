#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/checkpoint/contents.h"
#include "core/checkpoint/manifest.h"
#include "core/job/job.h"
#include "core/runtime/executor.h"

namespace shardrun::checkpoint {

/// The file that one rank writes of each checkpoint: a safetensors file of its pieces. Its layout is the same in each.
class RankFile {
 public:
  RankFile(const Contents& contents, std::int64_t rank);

  [[nodiscard]] std::uint64_t bytes() const noexcept { return layout_.file_bytes; }
  /// Of the pages of memory that a copy of the file takes.
  [[nodiscard]] std::uint64_t snapshot_bytes() const noexcept;

  /// Adds the rank's pieces to the tensors, which are those of the contents, as pieces of file number `file`.
  void add_pieces(std::vector<StoredTensor>& tensors, std::size_t file) const;

  /// Calls `take` with the file's bytes from the first to the last, as the states are now.
  void stream(const runtime::Executor& executor, const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  /// The bytes of a piece.
  struct Source {
    std::size_t tensor;
    mesh::Box box;
    graph::StateId state;
    std::uint64_t offset;  ///< in the file
    std::size_t begin;     ///< in the rank's part of the state
    std::size_t bytes;
  };

  TensorFileLayout layout_;
  std::vector<Source> sources_;  ///< in the order of the file
};

/// Sets the files and tensors of a manifest. `files`: of all ranks, in order.
void describe(const Contents& contents, std::vector<StoredFile> files, Manifest& manifest);

/// Whether ranks of the job copy what they save, and go on while it is written. What is saved at the end is not copied.
[[nodiscard]] bool takes_snapshots(const job::Job& job) noexcept;

}  // namespace shardrun::checkpoint
