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

/// Consecutive elements of a rank's part of a state, which a file stores as one tensor.
struct FilePart {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> whole;  ///< shape of the whole tensor
  mesh::Box box;                    ///< the elements, in coordinates of the whole tensor
  graph::StateId state;
  std::int64_t first = 0;  ///< index of the first element in the rank's part
};

/// A safetensors file with parts of one rank's states. It is the rank's file of a checkpoint, or a snapshot that
/// `verify` compares with those of other ranks. Its metadata says where each part is in its whole tensor
/// (place_text()). The layout does not depend on the values.
class RankFile {
 public:
  /// Computes the file's layout. REQUIRES: all parts have different names.
  explicit RankFile(const std::vector<FilePart>& parts);
  /// The file that `rank` writes for a checkpoint.
  RankFile(const Contents& contents, std::int64_t rank);

  [[nodiscard]] std::uint64_t bytes() const noexcept { return layout_.file_bytes; }
  /// The memory that a copy of the file needs, in bytes, rounded up to whole pages.
  [[nodiscard]] std::uint64_t snapshot_bytes() const noexcept;

  /// The name of each part, and its piece in the file. `file`: the file's index in the manifest.
  [[nodiscard]] std::vector<std::pair<std::string, Piece>> pieces(std::size_t file) const;

  /// Calls `take` with the bytes of the file, from first to last. Values are read from the states during the call.
  void stream(const runtime::Executor& executor, const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  struct Source {
    mesh::Box box;
    graph::StateId state;
    std::size_t begin;  ///< offset in bytes in the rank's part of the state
    std::size_t bytes;
  };

  TensorFileLayout layout_;
  std::vector<Source> sources_;  ///< where the values of each of layout_.tensors are
};

/// Sets the manifest's `files` and `tensors`. `files`: the files of all ranks, in the order of ranks.
void describe(const Contents& contents, std::vector<StoredFile> files, Manifest& manifest);

/// The key of a file's metadata under which the place of a tensor is stored.
[[nodiscard]] std::string place_key(const std::string& tensor);

/// The place of a part in its whole tensor, as text. "4,0 of 8,16" is the part's origin and the whole tensor's shape.
/// If the part is only elements 5 to 11 of a box of shape 4,16: "4,0 of 8,16, elements 5:12 of 4,16".
[[nodiscard]] std::string place_text(const mesh::Box& box, const std::vector<std::int64_t>& whole);

/// The place that a file's metadata gives for a tensor. Returns nothing if the metadata has none, or if the place does
/// not fit the shape of the whole tensor or of the stored one.
[[nodiscard]] std::optional<mesh::Box> place_in(const Metadata& metadata, const TensorInfo& stored,
                                                const std::vector<std::int64_t>& whole);

/// Whether ranks copy their states and continue while the copy is written to disk. The last save of a run
/// is written directly.
[[nodiscard]] bool takes_snapshots(const job::Job& job) noexcept;

}  // namespace shardrun::checkpoint
