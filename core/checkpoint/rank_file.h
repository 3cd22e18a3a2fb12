#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/contents.h"
#include "core/checkpoint/manifest.h"
#include "core/job/job.h"
#include "core/runtime/executor.h"

namespace shardrun::checkpoint {

/// Consecutive elements of a rank's part of a state, stored as a tensor of a file.
struct FilePart {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> whole;  ///< shape of the whole tensor
  mesh::Box box;                    ///< the elements, in coordinates of the whole tensor
  graph::StateId state;
  std::int64_t first = 0;  ///< index of the first of them in the rank's part
};

/// A safetensors file with parts of one rank's states: the rank's file of a checkpoint, or a snapshot for comparison.
/// Its metadata says where each part lies (place_text()). The layout does not depend on the values.
class RankFile {
 public:
  /// REQUIRES: the names of the parts differ.
  explicit RankFile(const std::vector<FilePart>& parts);
  /// The rank's file of a checkpoint.
  RankFile(const Contents& contents, std::int64_t rank);

  [[nodiscard]] std::uint64_t bytes() const noexcept { return layout_.file_bytes; }
  /// Bytes of the whole memory pages that a copy of the file needs.
  [[nodiscard]] std::uint64_t snapshot_bytes() const noexcept;

  /// Each part's name and its piece. `file`: the number of this file.
  [[nodiscard]] std::vector<std::pair<std::string, Piece>> pieces(std::size_t file) const;

  /// Calls `take` with the bytes of the file from the first to the last. Values are those that the states have now.
  void stream(const runtime::Executor& executor, const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  struct Source {
    mesh::Box box;
    graph::StateId state;
    std::size_t begin;  ///< byte in the rank's part of the state
    std::size_t bytes;
  };

  TensorFileLayout layout_;
  std::vector<Source> sources_;  ///< one for each of the layout's tensors
};

/// Sets the files and tensors of a manifest. `files`: those of all ranks, in order.
void describe(const Contents& contents, std::vector<StoredFile> files, Manifest& manifest);

/// The metadata key under which a file stores the place of a tensor.
[[nodiscard]] std::string place_key(const std::string& tensor);

/// The place of a part as text. "4,0 of 8,16" gives its origin and the whole shape. For a run of the elements of a box
/// of shape 4,16 it is "4,0 of 8,16, elements 5:12 of 4,16".
[[nodiscard]] std::string place_text(const mesh::Box& box, const std::vector<std::int64_t>& whole);

/// The place that a file's metadata gives for one of its tensors. Nothing if there is none, if it refers to another
/// whole or is not within it, or if the tensor has another shape.
[[nodiscard]] std::optional<mesh::Box> place_in(const Metadata& metadata, const TensorInfo& stored,
                                                const std::vector<std::int64_t>& whole);

/// Whether the job's ranks copy their states and continue while the copy is written. The last save is never copied.
[[nodiscard]] bool takes_snapshots(const job::Job& job) noexcept;

}  // namespace shardrun::checkpoint
