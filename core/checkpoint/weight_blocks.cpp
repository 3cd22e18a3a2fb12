#include "core/checkpoint/weight_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "core/graph/stored_weights.h"

namespace shardrun::checkpoint {
namespace {

/// How the values of a tensor are made from another tensor.
struct Converted {
  enum class Kind : std::uint8_t { same, integers, scales } kind = Kind::same;
  std::size_t from = 0;    ///< the index of the other tensor
  std::int64_t width = 0;  ///< elements of a row of weights
  bool is_turned = false;  ///< whether its rows are the other tensor's columns

  [[nodiscard]] std::int64_t blocks() const { return (width + graph::block_elements - 1) / graph::block_elements; }
};

/// The scale of a block before it is rounded.
float scale_of(std::span<const float> block) {
  float most = 0;
  for (const float value : block) {
    most = std::max(most, std::abs(value));
  }
  return most / 127;
}

/// Replaces a block by its integers. Returns its scale.
float to_integers(std::span<float> block) {
  const float scale = scale_of(block);
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (float& value : block) {
    value = std::round(value * inverse);
  }
  return scale;
}

/// Reads weights as integers and scales.
class WeightBlocks {
 public:
  WeightBlocks(const TensorSource& source, std::vector<Converted> tensors)
      : source_(source), tensors_(std::move(tensors)) {}

  void read(std::size_t tensor, std::int64_t first, std::span<std::byte> to) {
    const Converted& made = tensors_[tensor];
    if (made.kind == Converted::Kind::same) {
      source_.read(made.from, first, to);
      return;
    }
    numbers_.resize(to.size() / sizeof(float));
    if (made.is_turned) {
      read_turned(made, first);
    } else if (made.kind == Converted::Kind::integers) {
      read_integers(made, first);
    } else {
      read_scales(made, first);
    }
    std::memcpy(to.data(), numbers_.data(), to.size());
  }

 private:
  /// Fills numbers_ with the integers from index `first` on. Converts all blocks that contain them.
  void read_integers(const Converted& made, std::int64_t first) {
    const std::int64_t end = first + std::ssize(numbers_);
    const std::int64_t begin = first - first % made.width % graph::block_elements;
    const std::int64_t last = end - 1;
    const std::int64_t last_block = last - last % made.width % graph::block_elements;
    floats_.resize(static_cast<std::size_t>(last_block + length_of_block(made, last_block) - begin));
    read_as_float(source_, made.from, begin, floats_);
    for_each_block(made, begin, [](std::span<float> block) { to_integers(block); });
    std::copy_n(floats_.begin() + (first - begin), numbers_.size(), numbers_.begin());
  }

  void read_scales(const Converted& made, std::int64_t first) {
    const auto element_of = [&](std::int64_t block) {
      return block / made.blocks() * made.width + block % made.blocks() * graph::block_elements;
    };
    const std::int64_t begin = element_of(first);
    const std::int64_t last = element_of(first + std::ssize(numbers_) - 1);
    floats_.resize(static_cast<std::size_t>(last + length_of_block(made, last) - begin));
    read_as_float(source_, made.from, begin, floats_);
    auto to = numbers_.begin();
    for_each_block(made, begin, [&](std::span<float> block) { *to++ = scale_of(block); });
  }

  /// The length of the block that begins at this element.
  [[nodiscard]] static std::int64_t length_of_block(const Converted& made, std::int64_t element) {
    return std::min(graph::block_elements, made.width - element % made.width);
  }

  /// Calls act(block) for the blocks of `floats_`, which begin at this element of the tensor.
  template <class Act>
  void for_each_block(const Converted& made, std::int64_t begin, Act act) {
    for (std::int64_t at = 0; at < std::ssize(floats_);) {
      const std::int64_t length = length_of_block(made, begin + at);
      act(std::span(floats_).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(length)));
      at += length;
    }
  }

  void read_turned(const Converted& made, std::int64_t first) {
    if (held_ != made.from) {
      held_ = std::nullopt;
      hold(made);
      held_ = made.from;
    }
    if (made.kind == Converted::Kind::integers) {
      std::copy_n(integers_.begin() + first, numbers_.size(), numbers_.begin());
    } else {
      std::copy_n(scales_.begin() + first, numbers_.size(), numbers_.begin());
    }
  }

  /// Converts a turned tensor, [width, rows] in the file, to rows in integers_ and their scales in scales_.
  void hold(const Converted& made) {
    const TensorInfo& info = source_.tensors[made.from];
    const auto elements = static_cast<std::int64_t>(*tensor_bytes(info) / element_bytes(info.dtype));
    const std::int64_t rows = made.width > 0 ? elements / made.width : 0;
    integers_.resize(static_cast<std::size_t>(elements));
    scales_.resize(static_cast<std::size_t>(rows * made.blocks()));
    for (std::int64_t block = 0; block < made.blocks(); ++block) {
      const std::int64_t first = block * graph::block_elements;
      const std::int64_t length = length_of_block(made, first);
      floats_.resize(static_cast<std::size_t>(length * rows));
      read_as_float(source_, made.from, first * rows, floats_);
      std::array<float, graph::block_elements> column = {};
      const std::span<float> used = std::span(column).first(static_cast<std::size_t>(length));
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t e = 0; e < length; ++e) {
          column[static_cast<std::size_t>(e)] = floats_[static_cast<std::size_t>(e * rows + row)];
        }
        scales_[static_cast<std::size_t>(row * made.blocks() + block)] = to_integers(used);
        std::ranges::transform(used, integers_.begin() + row * made.width + first,
                               [](float value) { return static_cast<std::int8_t>(value); });
      }
    }
  }

  const TensorSource& source_;
  std::vector<Converted> tensors_;
  std::vector<float> floats_;
  std::vector<float> numbers_;
  std::optional<std::size_t> held_;    ///< the turned tensor that is kept
  std::vector<std::int8_t> integers_;  ///< the rows of that tensor
  std::vector<float> scales_;          ///< the scales of those rows
};

}  // namespace

std::vector<std::int64_t> shape_in_files(const graph::State& parameter) {
  std::vector<std::int64_t> shape = parameter.type.shape;
  if (parameter.is_turned) {
    std::rotate(shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(parameter.contracted), shape.end());
  }
  return shape;
}

TensorSource in_blocks(const TensorSource& source, const graph::Graph& graph) {
  TensorSource made;
  made.path = source.path;
  made.files = source.files;
  made.metadata = source.metadata;
  made.has_slow_reads = source.has_slow_reads;
  std::vector<Converted> tensors;
  for (const graph::State& state : graph.states) {
    if (state.kind != graph::StateKind::parameter) {
      continue;
    }
    const bool is_scale = state.of_parameter.exists();
    const graph::State& weights = is_scale ? graph.states[state.of_parameter] : state;
    const std::size_t from = source.index_of(weights.name);
    if (weights.contracted == 0) {
      tensors.push_back({.from = from});
      made.tensors.push_back(source.tensors[from]);
      continue;
    }
    Converted& converted =
        tensors.emplace_back(Converted{.kind = is_scale ? Converted::Kind::scales : Converted::Kind::integers,
                                       .from = from,
                                       .width = 1,
                                       .is_turned = weights.is_turned});
    for (std::size_t d = weights.type.shape.size() - weights.contracted; d < weights.type.shape.size(); ++d) {
      converted.width *= weights.type.shape[d];
    }
    made.tensors.push_back({state.name, DType::f32, state.type.shape});
  }
  made.read = [blocks = std::make_shared<WeightBlocks>(source, std::move(tensors))](
                  std::size_t tensor, std::int64_t first, std::span<std::byte> to) { blocks->read(tensor, first, to); };
  return made;
}

}  // namespace shardrun::checkpoint
