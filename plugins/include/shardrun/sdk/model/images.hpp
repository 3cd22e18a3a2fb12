#pragma once

/// Layers for images: x [batch, channels, H, W], or [batch, channels, L] in one dimension.

#include <shardrun/sdk/model/tensors.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::sdk {

/// How a window slides. Each list has one entry per sliding dimension; `padding` can have two, low and high. An empty
/// list means strides of 1, or of the pool's own size; padding of 0; dilation of 1.
struct Sliding {
  std::vector<std::int64_t> strides = {};
  std::vector<std::int64_t> padding = {};
  std::vector<std::int64_t> dilation = {};  ///< for conv
  std::int64_t groups = 1;                  ///< for conv
};

namespace detail {

[[nodiscard]] inline std::vector<std::int64_t> or_else(const std::vector<std::int64_t>& given,
                                                       const std::vector<std::int64_t>& otherwise) {
  return given.empty() ? otherwise : given;
}

/// For each dimension, its low and its high padding.
[[nodiscard]] inline std::vector<std::int64_t> both_sides(const std::vector<std::int64_t>& padding, std::size_t count) {
  if (padding.size() != count || count == 0) {
    return or_else(padding, std::vector<std::int64_t>(2 * count));
  }
  std::vector<std::int64_t> both;
  for (const std::int64_t each : padding) {
    both.insert(both.end(), 2, each);
  }
  return both;
}

[[nodiscard]] inline std::vector<Attribute> pool_attributes(const std::vector<std::int64_t>& size,
                                                            const Sliding& sliding) {
  return {{"size", size},
          {"strides", or_else(sliding.strides, size)},
          {"padding", both_sides(sliding.padding, size.size())}};
}

/// The dimensions over which a channel's mean is taken: all except the second.
[[nodiscard]] inline std::vector<std::int64_t> dimensions_of_a_channel(const Value& x) {
  std::vector<std::int64_t> dims = all_dimensions(x);
  dims.erase(dims.begin() + 1);
  return dims;
}

}  // namespace detail

/// w: [out, channels / groups, kernel H, kernel W]   result: [batch, out, H', W']
///
///     const Value y = conv(x, w, {.strides = {2, 2}, .padding = {3, 3}});
[[nodiscard]] inline Value conv(const Value& x, const Value& w, const Sliding& sliding = {},
                                const std::string& name = {}) {
  const std::size_t count = w.dims().size() < 2 ? 0 : w.dims().size() - 2;
  const std::vector<std::int64_t> ones(count, 1);
  return x.function().call("conv", {x, w},
                           {{"strides", detail::or_else(sliding.strides, ones)},
                            {"padding", detail::both_sides(sliding.padding, count)},
                            {"dilation", detail::or_else(sliding.dilation, ones)},
                            {"groups", sliding.groups}},
                           name);
}

/// The largest element of each window. Windows cover the last dimensions, as many as `size` has.
[[nodiscard]] inline Value max_pool(const Value& x, const std::vector<std::int64_t>& size, const Sliding& sliding = {},
                                    const std::string& name = {}) {
  return x.function().call_all("max_pool", {x}, detail::pool_attributes(size, sliding), name).front();
}

/// The mean of each window. `counts_padding`: padding counts as zeros; otherwise it is left out of the mean.
[[nodiscard]] inline Value average_pool(const Value& x, const std::vector<std::int64_t>& size,
                                        const Sliding& sliding = {}, bool counts_padding = false,
                                        const std::string& name = {}) {
  std::vector<Attribute> attributes = detail::pool_attributes(size, sliding);
  attributes.push_back({"counts_padding", std::int64_t{counts_padding ? 1 : 0}});
  return x.function().call("average_pool", {x}, attributes, name);
}

/// The mean and the variance of each channel, over all samples of the call and all positions.
struct Statistics {
  Value mean;      ///< [channels]
  Value variance;  ///< [channels]
};
[[nodiscard]] inline Statistics channel_statistics(const Value& x) {
  const std::vector<std::int64_t> dims = detail::dimensions_of_a_channel(x);
  const Value average = mean(x, dims);
  const Value centred = x - expand(average, x, dims);
  return {average, mean(centred * centred, dims)};
}

namespace detail {

[[nodiscard]] inline Value normalize(const Value& centred, const Value& variance, const Value& gain, const Value& bias,
                                     double epsilon) {
  const std::vector<std::int64_t> dims = dimensions_of_a_channel(centred);
  return centred * expand(rsqrt(variance + epsilon) * gain, centred, dims) + expand(bias, centred, dims);
}

}  // namespace detail

/// (x - mean) / sqrt(variance + epsilon) · gain + bias of each channel. gain, bias: [channels]
[[nodiscard]] inline Value batch_norm(const Value& x, const Statistics& statistics, const Value& gain,
                                      const Value& bias, double epsilon) {
  const Value centred = x - expand(statistics.mean, x, detail::dimensions_of_a_channel(x));
  return detail::normalize(centred, statistics.variance, gain, bias, epsilon);
}
/// The same with the statistics of the call's whole batch (a microbatch), even if the batch is split. A model that
/// needs running statistics keeps them as states.
[[nodiscard]] inline Value batch_norm(const Value& x, const Value& gain, const Value& bias, double epsilon = 1e-5) {
  const std::vector<std::int64_t> dims = detail::dimensions_of_a_channel(x);
  const Value centred = x - expand(mean(x, dims), x, dims);
  return detail::normalize(centred, mean(centred * centred, dims), gain, bias, epsilon);
}

}  // namespace shardrun::sdk
