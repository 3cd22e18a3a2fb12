#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>

#include "core/base/philox.h"
#include "core/device/elements.h"
#include "core/device/host_device.h"
#include "core/device/host_tensor.h"
#include "core/runtime/executor.h"

namespace shardrun::runtime {
namespace {

/// Two independent normal draws (Box & Muller 1958). The first uniform number is never zero.
std::array<double, 2> normal_pair(std::uint32_t a, std::uint32_t b) noexcept {
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(a) + 0.5) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * (static_cast<double>(b) * 0x1p-32);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Random draws by global element index. Four neighbouring elements share one block, which is computed once.
class Draws {
 public:
  explicit Draws(PhiloxKey key) : key_(key) {}

  /// A draw with mean 0 and deviation 1.
  double normal(std::uint64_t element) noexcept {
    if (draw(element)) {
      const std::array<double, 2> first = normal_pair(bits_[0], bits_[1]);
      const std::array<double, 2> second = normal_pair(bits_[2], bits_[3]);
      normals_ = {first[0], first[1], second[0], second[1]};
    }
    return normals_[element % 4];
  }

  /// A draw from [0, 1) that a float represents exactly.
  double uniform(std::uint64_t element) noexcept {
    draw(element);
    return static_cast<double>(bits_[element % 4] >> 8U) * 0x1p-24;
  }

 private:
  /// Computes the block of an element. Returns whether it is a new block.
  bool draw(std::uint64_t element) noexcept {
    if (element / 4 == block_ && drawn_) {
      return false;
    }
    block_ = element / 4;
    drawn_ = true;
    bits_ = philox({static_cast<std::uint32_t>(block_), static_cast<std::uint32_t>(block_ >> 32U), 0, 0}, key_);
    return true;
  }

  PhiloxKey key_;
  std::uint64_t block_ = 0;
  bool drawn_ = false;
  PhiloxBlock bits_ = {};
  std::array<double, 4> normals_ = {};
};

/// The value that a Gaussian bump has at an element. It has height 1 and is centred in the tensor. `width`: its
/// standard deviation, as a share of each dimension.
double bump(const std::vector<std::int64_t>& shape, std::int64_t element, double width) noexcept {
  double squares = 0;
  for (std::size_t d = shape.size(); d-- > 0;) {
    const double x = (static_cast<double>(element % shape[d]) + 0.5) / static_cast<double>(shape[d]) - 0.5;
    squares += (x / width) * (x / width);
    element /= shape[d];
  }
  return std::exp(-0.5 * squares);
}

/// Rounds to float32, so that all devices begin with the same numbers.
double rounded(double value) noexcept { return static_cast<double>(static_cast<float>(value)); }

/// The first value of an element in a state that is not constant.
double first_value(const graph::State& state, std::int64_t element, Draws& draws) noexcept {
  using Kind = graph::Initializer::Kind;
  const double value = state.initializer.value;
  const auto index = static_cast<std::uint64_t>(element);
  const auto exact = [&] {
    switch (state.initializer.kind) {
      case Kind::constant: return value;
      case Kind::normal: return value * draws.normal(index);
      case Kind::gaussian_bump: return bump(state.type.shape, element, value);
      case Kind::uniform: return value * draws.uniform(index);
      case Kind::chance: return draws.uniform(index) < value ? 1.0 : 0.0;
      case Kind::counting: return value * (static_cast<double>(element) + 1);
    }
    return value;
  };
  return rounded(exact());
}

/// Fills elements [begin, end) block by block. `next(values, first)` computes the values from element `first` on.
template <typename Next>
void fill(const device::TensorView& view, std::int64_t begin, std::int64_t end, const Next& next) {
  std::array<double, 256> values = {};
  for (std::int64_t first = begin; first < end; first += static_cast<std::int64_t>(values.size())) {
    const std::int64_t count = std::min<std::int64_t>(end - first, static_cast<std::int64_t>(values.size()));
    const std::span<double> block(values.data(), static_cast<std::size_t>(count));
    next(block, first);
    device::write_elements(view, first, block);
  }
}

}  // namespace

void initialize(const device::TensorView& view, const mesh::Box& part, const graph::State& state, std::uint64_t seed,
                device::Threads& threads) {
  if (state.initializer.kind == graph::Initializer::Kind::constant) {
    device::fill_on_host(view, rounded(state.initializer.value), threads);
    return;
  }
  threads.split(view.elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
    const std::string& stream = state.initializer.stream;
    Draws draws(stream_key(seed, stream.empty() ? state.name : stream));
    fill(view, begin, end, [&](std::span<double> values, std::int64_t first) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int64_t element = part.index_in_whole(state.type.shape, first + static_cast<std::int64_t>(i));
        values[i] = first_value(state, element, draws);
      }
    });
  });
}

void initialize(const graph::Graph& graph, std::uint64_t seed, Executor& executor,
                const std::set<graph::StateId>& loaded) {
  device::Queue& queue = executor.queue();
  for (const graph::StateId id : graph.states.ids()) {
    const graph::State& state = graph.states[id];
    if (loaded.contains(id)) {
      continue;
    }
    if (state.initializer.kind == graph::Initializer::Kind::constant) {
      queue.fill(executor.state(id), rounded(state.initializer.value));
    } else {
      device::HostTensor values(queue, executor.state(id), device::Access::write);
      initialize(values.view(), executor.part(id), state, seed, executor.threads());
      values.store();
    }
  }
}

}  // namespace shardrun::runtime
