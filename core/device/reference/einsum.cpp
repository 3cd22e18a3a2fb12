#include "core/graph/einsum.h"

#include <string>
#include <vector>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// A letter in a tensor: its number of indices, and the elements from one index to the next.
struct Letter {
  std::int64_t size = 1;
  std::int64_t stride = 0;
};
Letter letter_of(const TensorView& tensor, const std::string& letters, char letter) {
  const std::size_t at = letters.find(letter);
  if (at == std::string::npos) {
    return {};
  }
  const auto d = static_cast<std::uint32_t>(at);
  return {tensor.shape[d], extent(tensor, d + 1, tensor.rank)};
}

/// The offsets of the elements of both operands, for all indices of some letters.
struct Places {
  std::vector<std::int64_t> a = {0};
  std::vector<std::int64_t> b = {0};
};
Places places_of(const KernelCall& call, const graph::Einsum& einsum, const std::string& letters) {
  Places places;
  for (const char c : letters) {
    const Letter in_a = letter_of(call.inputs[0], einsum.a, c);
    const Letter in_b = letter_of(call.inputs[1], einsum.b, c);
    const std::int64_t size = einsum.a.find(c) == std::string::npos ? in_b.size : in_a.size;
    Places inner{{}, {}};
    for (std::size_t outer = 0; outer < places.a.size(); ++outer) {
      for (std::int64_t i = 0; i < size; ++i) {
        inner.a.push_back(places.a[outer] + i * in_a.stride);
        inner.b.push_back(places.b[outer] + i * in_b.stride);
      }
    }
    places = std::move(inner);
  }
  return places;
}

/// y[i] = sum over r of a[i, r] b[i, r]. i stands for the indices of the result's letters, r for those of the others.
void einsum(const KernelCall& call) {
  const graph::Einsum einsum = graph::parse_einsum(call.attributes.text("spec"));
  const Places kept = places_of(call, einsum, einsum.result);
  const Places summed = places_of(call, einsum, graph::summed_letters(einsum));
  const double* const a = reals(call.inputs[0]);
  const double* const b = reals(call.inputs[1]);
  for_each(call, call.outputs[0].elements(), static_cast<std::int64_t>(summed.a.size()), [&](std::int64_t element) {
    const auto i = static_cast<std::size_t>(element);
    double sum = 0;
    for (std::size_t r = 0; r < summed.a.size(); ++r) {
      sum += a[kept.a[i] + summed.a[r]] * b[kept.b[i] + summed.b[r]];
    }
    put(call, element, sum);
  });
}

const RegisterKernel register_einsum("reference", "einsum", {.run = einsum});

}  // namespace
}  // namespace shardrun::device::reference
