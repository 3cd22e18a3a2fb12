#include "core/checkpoint/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/contents.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/mesh/rows.h"

namespace shardrun::checkpoint {
namespace {

template <typename Check>
void note(Verified& verified, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    verified.faults.push_back(error.message());
  }
}

/// The elements of a piece, as indices in its box: the box's run or, without one, all elements.
mesh::Interval elements_in(const mesh::Box& box) { return box.run.value_or(mesh::Interval{0, box.elements()}); }

bool have_same_box(const Piece& first, const Piece& second) {
  return first.box.origin == second.box.origin && first.box.shape == second.box.shape;
}

/// Finds pieces of a tensor that share elements. Pieces with the same box are compared by their runs. Different boxes
/// are compared pairwise, because a tensor has few boxes. Holds at most the rows of two pieces in memory.
class Sharing {
 public:
  Sharing(const StoredTensor& tensor, const Manifest& manifest) : tensor_(tensor), manifest_(manifest) {
    pieces_ = tensor.pieces;
    std::erase_if(pieces_, [](const Piece& piece) { return piece.box.elements() == 0; });
    std::ranges::sort(pieces_, {}, [](const Piece& piece) {
      return std::tuple(piece.box.origin, piece.box.shape, elements_in(piece.box).begin);
    });
  }

  /// Returns lines that each name two pieces that share elements; none if no two pieces do.
  [[nodiscard]] std::vector<std::string> find() const {
    std::vector<std::string> faults;
    std::vector<std::span<const Piece>> boxes;
    for (std::span<const Piece> rest = pieces_; !rest.empty();) {
      const auto end = std::ranges::find_if_not(rest, [&](const Piece& p) { return have_same_box(p, rest.front()); });
      boxes.push_back(rest.first(static_cast<std::size_t>(end - rest.begin())));
      rest = rest.subspan(boxes.back().size());
    }
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      within(boxes[i], faults);
      for (std::size_t j = i + 1; j < boxes.size(); ++j) {
        if (mesh::overlap(boxes[i].front().box, boxes[j].front().box)) {
          between(boxes[i], boxes[j], faults);
        }
      }
    }
    return faults;
  }

 private:
  void within(std::span<const Piece> pieces, std::vector<std::string>& faults) const {
    const Piece* last = &pieces.front();
    for (const Piece& piece : pieces.subspan(1)) {
      if (elements_in(piece.box).begin < elements_in(last->box).end) {
        faults.push_back(fault(*last, piece));
      }
      last = elements_in(piece.box).end > elements_in(last->box).end ? &piece : last;
    }
  }

  void between(std::span<const Piece> first, std::span<const Piece> second, std::vector<std::string>& faults) const {
    for (const Piece& a : first) {
      stop_point();
      const std::vector<mesh::Row> rows = mesh::rows_of(tensor_.shape, a.box);
      for (const Piece& b : second) {
        if (!mesh::shared_rows(rows, mesh::rows_of(tensor_.shape, b.box)).empty()) {
          faults.push_back(fault(a, b));
        }
      }
    }
  }

  [[nodiscard]] std::string fault(const Piece& first, const Piece& second) const {
    return fmt::format("tensor {}: pieces in {} and {} have some of the same elements", tensor_.name,
                       manifest_.files[first.file].name, manifest_.files[second.file].name);
  }

  const StoredTensor& tensor_;
  const Manifest& manifest_;
  std::vector<Piece> pieces_;
};

/// Checks that each element is in exactly one piece. That is so if no two pieces share an element, and if together the
/// pieces have as many elements as the tensor.
void verify_tensor(const StoredTensor& tensor, const Manifest& manifest, Verified& verified) {
  const std::vector<std::string> shared = Sharing(tensor, manifest).find();
  verified.faults.insert(verified.faults.end(), shared.begin(), shared.end());
  std::int64_t given = 0;
  for (const Piece& piece : tensor.pieces) {
    given += piece.box.elements();
  }
  const std::int64_t all =
      static_cast<std::int64_t>(*tensor_bytes({tensor.name, tensor.dtype, tensor.shape}) / element_bytes(tensor.dtype));
  if (shared.empty() && given != all) {
    verified.faults.push_back(
        fmt::format("tensor {}: {} of its {} elements lie in no piece", tensor.name, all - given, all));
  }
}

}  // namespace

Verified verify_checkpoint(const std::filesystem::path& folder) {
  Verified verified;
  std::optional<Manifest> manifest;
  note(verified, [&] { manifest = read_manifest(folder); });
  if (!manifest) {
    return verified;
  }
  for (std::size_t i = 0; i < manifest->files.size(); ++i) {
    note(verified, [&] {
      const files::SteadyFile file = open_stored(folder, manifest->files[i]);
      note(verified, [&] { check_hash(file, manifest->files[i].hash); });
      check_pieces(file, *manifest, i);
      verified.bytes += file.size();
    });
  }
  for (const StoredTensor& tensor : manifest->tensors) {
    note(verified, [&] { static_cast<void>(loaded_type(tensor.dtype)); });
    verify_tensor(tensor, *manifest, verified);
  }
  verified.files = static_cast<std::int64_t>(manifest->files.size());
  verified.tensors = static_cast<std::int64_t>(manifest->tensors.size());
  return verified;
}

}  // namespace shardrun::checkpoint
