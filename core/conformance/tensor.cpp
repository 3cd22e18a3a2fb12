#include "core/conformance/tensor.h"

#include <cmath>
#include <string>
#include <utility>

namespace shardrun::conformance {
namespace {

/// The product of dimensions [first, last) of a shape.
std::int64_t extent(const std::vector<std::int64_t>& shape, std::size_t first, std::size_t last) {
  std::int64_t product = 1;
  for (std::size_t d = first; d < last; ++d) {
    product *= shape[d];
  }
  return product;
}

}  // namespace

graph::TensorType type_of(std::vector<std::int64_t> shape, graph::DType dtype) {
  graph::TensorType type{.dtype = dtype, .shape = std::move(shape), .axes = {}};
  for (std::size_t d = 0; d < type.shape.size(); ++d) {
    type.axes.push_back("a" + std::to_string(d));
  }
  return type;
}

Tensor zeros(graph::TensorType type) {
  Tensor tensor{.type = std::move(type), .values = {}, .origin = {}, .global = {}};
  tensor.values.assign(static_cast<std::size_t>(graph::element_count(tensor.type)), 0.0);
  tensor.origin.assign(tensor.type.shape.size(), 0);
  tensor.global = tensor.type.shape;
  return tensor;
}

Tensor slice(const Tensor& tensor, std::size_t dim, std::int64_t begin, std::int64_t end) {
  const std::vector<std::int64_t>& shape = tensor.type.shape;
  const std::int64_t inner = extent(shape, dim + 1, shape.size());
  Tensor part{.type = tensor.type, .values = {}, .origin = tensor.origin, .global = tensor.global};
  part.type.shape[dim] = end - begin;
  part.origin[dim] += begin;
  for (std::int64_t o = 0; o < extent(shape, 0, dim); ++o) {
    const auto row = tensor.values.begin() + o * shape[dim] * inner;
    part.values.insert(part.values.end(), row + begin * inner, row + end * inner);
  }
  return part;
}

Tensor concatenate(const std::vector<Tensor>& parts, std::size_t dim) {
  Tensor whole = parts.front();
  const std::vector<std::int64_t>& shape = parts.front().type.shape;
  whole.values.clear();
  whole.type.shape[dim] = 0;
  for (const Tensor& part : parts) {
    whole.type.shape[dim] += part.type.shape[dim];
  }
  for (std::int64_t o = 0; o < extent(shape, 0, dim); ++o) {
    for (const Tensor& part : parts) {
      const std::int64_t length = part.type.shape[dim] * extent(shape, dim + 1, shape.size());
      whole.values.insert(whole.values.end(), part.values.begin() + o * length, part.values.begin() + (o + 1) * length);
    }
  }
  return whole;
}

/// Makes two draws at a time by Marsaglia's polar method, like std::normal_distribution. That one also computes a
/// logarithm of a long double in each draw, which took a third of the time of the kernels' tests.
void Random::fill_normal(Tensor& tensor, double mean, double deviation) {
  double second = 0;
  bool has_second = false;
  const auto symmetric = [this] { return 2 * (static_cast<double>(engine_()) / 0x1p64) - 1; };  // in [-1, 1]
  const auto draw = [&] {
    if (std::exchange(has_second, false)) {
      return second;
    }
    double x = 0;
    double y = 0;
    double square = 0;
    do {
      x = symmetric();
      y = symmetric();
      square = x * x + y * y;
    } while (square > 1 || square == 0);
    const double scale = std::sqrt(-2 * std::log(square) / square);
    second = x * scale;
    has_second = true;
    return y * scale;
  };
  for (double& value : tensor.values) {
    do {
      value = static_cast<float>(mean + deviation * draw());
    } while (std::abs(value) < 0.01);
  }
}

void Random::fill_uniform(Tensor& tensor, double low, double high) {
  std::uniform_real_distribution<double> draw(low, high);
  for (double& value : tensor.values) {
    value = static_cast<float>(draw(engine_));
  }
}

void Random::fill_integers(Tensor& tensor, std::int32_t limit) {
  for (double& value : tensor.values) {
    value = static_cast<double>(below(limit));
  }
}

std::int64_t Random::below(std::int64_t limit) {
  return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(engine_);
}

}  // namespace shardrun::conformance
