#include <optional>

#include "core/device/cuda/columns.h"
#include "core/device/cuda/fusions.h"
#include "core/device/cuda/rows.h"

// Layer norm and RMS norm, over the last dimension. Statistics are float32 in registers. A warp that reads in packs
// also keeps its row in registers. Other rows are read again, from the cache, for each pass.
// x, y, dy, dx: [L, E]   gain, bias, dgain: [E]   mean, rstd: [L]

namespace shardrun::device::cuda {
namespace {

/// y = (x - mean) rstd gain + bias, rstd = 1 / sqrt(variance + epsilon). Ba, Kiros and Hinton 2016, arXiv:1607.06450,
/// equations 3 and 4.
struct LayerNorm {
  Reals x;
  Reals gain;
  Reals bias;
  bool has_bias;
  Reals y;
  Reals mean;
  Reals rstd;
  std::int64_t width;
  float epsilon;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t from = row * width;
    const float count = static_cast<float>(width);
    const auto load = [&](std::int64_t e) { return x.get_pack<pack>(from + e); };
    const auto of_row = team.template held<pack>(width, load);
    float sum = 0;
    of_row.each([&](std::int64_t, const Pack<pack>& values) {
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { sum += values[k]; }
    });
    const float average = team.sum(sum) / count;
    float squares = 0;
    of_row.each([&](std::int64_t, const Pack<pack>& values) {
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) {
        const float deviation = values[k] - average;
        squares += deviation * deviation;
      }
    });
    const float scale = 1.0F / FloatMath::sqrt(team.sum(squares) / count + epsilon);
    of_row.each([&](std::int64_t e, const Pack<pack>& values) {
      const Pack<pack> gains = gain.get_pack<pack>(e);
      const Pack<pack> biases = has_bias ? bias.get_pack<pack>(e) : Pack<pack>{};
      Pack<pack> results;
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) {
        results[k] = (values[k] - average) * scale * gains[k] + biases[k];
      }
      y.set_pack(from + e, results);
    });
    if (team.member() == 0) {
      mean.set(row, average);
      rstd.set(row, scale);
    }
  }
};

void layer_norm(const KernelCall& call) {
  const bool has_bias = call.inputs.size() == 3;
  const std::int64_t width = columns(call.inputs[0]);
  for_each_row(call, rows(call.inputs[0]), width,
               LayerNorm{.x = reals(call.inputs[0]),
                         .gain = reals(call.inputs[1]),
                         .bias = has_bias ? reals(call.inputs[2]) : Reals{},
                         .has_bias = has_bias,
                         .y = reals(call.outputs[0]),
                         .mean = reals(call.outputs[1]),
                         .rstd = reals(call.outputs[2]),
                         .width = width,
                         .epsilon = static_cast<float>(call.attributes.real("epsilon"))});
}

/// y = x rstd gain, rstd = 1 / sqrt(average of x^2 + epsilon). Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
struct RmsNorm {
  Reals x;
  Reals gain;
  Reals y;
  Reals rstd;
  std::int64_t width;
  float epsilon;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t from = row * width;
    const auto load = [&](std::int64_t e) { return x.get_pack<pack>(from + e); };
    const auto of_row = team.template held<pack>(width, load);
    float squares = 0;
    of_row.each([&](std::int64_t, const Pack<pack>& values) {
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { squares += values[k] * values[k]; }
    });
    const float scale = 1.0F / FloatMath::sqrt(team.sum(squares) / static_cast<float>(width) + epsilon);
    of_row.each([&](std::int64_t e, const Pack<pack>& values) {
      const Pack<pack> gains = gain.get_pack<pack>(e);
      Pack<pack> results;
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { results[k] = values[k] * scale * gains[k]; }
      y.set_pack(from + e, results);
    });
    if (team.member() == 0) {
      rstd.set(row, scale);
    }
  }
};

void rms_norm(const KernelCall& call) {
  const std::int64_t width = columns(call.inputs[0]);
  for_each_row(call, rows(call.inputs[0]), width,
               RmsNorm{.x = reals(call.inputs[0]),
                       .gain = reals(call.inputs[1]),
                       .y = reals(call.outputs[0]),
                       .rstd = reals(call.outputs[1]),
                       .width = width,
                       .epsilon = static_cast<float>(call.attributes.real("epsilon"))});
}

/// With n = (x - mean) rstd and g = dy gain:  dx = rstd (g - average(g) - n average(g n)). RMS norm has no mean, and
/// its gradient no average(g). With `adds`, the kernel also computes sum = dx + added, for the gradient of a residual.
/// It then writes dx only if `keeps_dx`.
template <bool adds>
struct GradientInput {
  Reals dy;
  Reals x;
  Reals gain;
  Reals mean;
  bool has_mean;
  Reals rstd;
  Reals dx;
  bool keeps_dx;
  Reals added;
  Reals sum;
  std::int64_t width;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t from = row * width;
    const float average = has_mean ? mean.get(row) : 0.0F;
    const float scale = rstd.get(row);
    struct Loaded {
      Pack<pack> values;
      Pack<pack> gradients;
      Pack<adds ? pack : 1> others;
    };
    const auto load = [&](std::int64_t e) {
      Loaded loaded = {x.get_pack<pack>(from + e), dy.get_pack<pack>(from + e), {}};
      if constexpr (adds) {
        loaded.others = added.get_pack<pack>(from + e);
      }
      return loaded;
    };
    const auto of_row = team.template held<pack>(width, load);
    float sum_g = 0;
    float sum_gn = 0;
    of_row.each([&](std::int64_t e, const Loaded& loaded) {
      const Pack<pack> gains = gain.get_pack<pack>(e);
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) {
        const float g = loaded.gradients[k] * gains[k];
        sum_g += g;
        sum_gn += g * ((loaded.values[k] - average) * scale);
      }
    });
    const float average_g = has_mean ? team.sum(sum_g) / static_cast<float>(width) : 0.0F;
    const float average_gn = team.sum(sum_gn) / static_cast<float>(width);
    of_row.each([&](std::int64_t e, const Loaded& loaded) {
      const Pack<pack> gains = gain.get_pack<pack>(e);
      Pack<pack> results;
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) {
        const float n = (loaded.values[k] - average) * scale;
        results[k] = scale * (loaded.gradients[k] * gains[k] - average_g - n * average_gn);
      }
      if (!adds || keeps_dx) {
        dx.set_pack(from + e, results);
      }
      if constexpr (adds) {
        SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { results[k] += loaded.others[k]; }
        sum.set_pack(from + e, results);
      }
    });
  }
};

/// `adds`: adds the last operand. The results are then the sum and, if it is kept, dx.
template <bool has_mean, bool adds>
void gradient_input(const KernelCall& call) {
  const std::int64_t width = columns(call.inputs[1]);
  const bool keeps_dx = !adds || call.outputs.size() > 1;
  for_each_row(call, rows(call.inputs[1]), width,
               GradientInput<adds>{.dy = reals(call.inputs[0]),
                                   .x = reals(call.inputs[1]),
                                   .gain = reals(call.inputs[2]),
                                   .mean = has_mean ? reals(call.inputs[3]) : Reals{},
                                   .has_mean = has_mean,
                                   .rstd = reals(call.inputs[has_mean ? 4 : 3]),
                                   .dx = keeps_dx ? reals(call.outputs.back()) : Reals{},
                                   .keeps_dx = keeps_dx,
                                   .added = adds ? reals(call.inputs.back()) : Reals{},
                                   .sum = adds ? reals(call.outputs.front()) : Reals{},
                                   .width = width});
}

/// Fuses a norm's gradient dx with the sum dx + other, if the sum overwrites dx or other. The thread that has read an
/// element of these two writes it.
std::optional<FusedArguments> gradient_and_sum(const PreparedKernel& gradient, const PreparedKernel& add) {
  const TensorView& dx = gradient.outputs.front();
  const TensorView& sum = add.outputs.front();
  const bool is_second = is_same(dx, add.inputs[1]);
  const TensorView& other = add.inputs[is_second ? 0 : 1];
  const bool is_operand = is_second || is_same(dx, add.inputs[0]);
  if (!is_operand || is_same(other, dx) || !have_same_shape(other, dx) || !have_same_shape(sum, dx) ||
      !(is_same(sum, dx) || is_same(sum, other))) {
    return std::nullopt;
  }
  FusedArguments made = {gradient.inputs, {sum}};
  made.inputs.push_back(other);
  if (!is_same(sum, dx)) {
    made.outputs.push_back(dx);
  }
  return made;
}

/// The terms of dgain[e] = sum over rows of dy (x - mean) rstd.
struct GainTerm {
  Reals dy;
  Reals x;
  Reals mean;
  bool has_mean;
  Reals rstd;
  std::int64_t width;

  template <int pack>
  [[nodiscard]] SHARDRUN_ON_DEVICE Pack<pack> get(std::int64_t row, std::int64_t e) const {
    const Pack<pack> values = x.get_pack<pack>(row * width + e);
    const Pack<pack> gradients = dy.get_pack<pack>(row * width + e);
    const float average = has_mean ? mean.get(row) : 0.0F;
    const float scale = rstd.get(row);
    Pack<pack> terms;
    SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { terms[k] = gradients[k] * (values[k] - average) * scale; }
    return terms;
  }
};

void gradient_gain(const KernelCall& call, bool has_mean) {
  const std::int64_t width = columns(call.inputs[1]);
  const bool in_packs = width % pack_size == 0 && is_aligned(call.inputs[0]) && is_aligned(call.inputs[1]);
  join_rows(call, rows(call.inputs[1]), width, in_packs,
            GainTerm{.dy = reals(call.inputs[0]),
                     .x = reals(call.inputs[1]),
                     .mean = has_mean ? reals(call.inputs[2]) : Reals{},
                     .has_mean = has_mean,
                     .rstd = reals(call.inputs[has_mean ? 3 : 2]),
                     .width = width},
            Plus{}, 0);
}

void layer_norm_gradient_gain(const KernelCall& call) { gradient_gain(call, true); }
void rms_norm_gradient_gain(const KernelCall& call) { gradient_gain(call, false); }

std::size_t gradient_gain_scratch(const graph::OpShape& shape, int) {
  const std::int64_t width = shape.inputs[1].shape.back();
  const std::int64_t elements = graph::element_count(shape.inputs[1]);
  return elements == 0 ? 0 : join_rows_scratch(elements / width, width);
}

const AddKernels norms(
    {{"layer_norm", {.run = layer_norm}},
     {"layer_norm_gradient_input", {.run = gradient_input<true, false>}},
     {"layer_norm_gradient_gain", {.run = layer_norm_gradient_gain, .scratch_bytes = gradient_gain_scratch}},
     {"rms_norm", {.run = rms_norm}},
     {"rms_norm_gradient_input", {.run = gradient_input<false, false>}},
     {"rms_norm_gradient_gain", {.run = rms_norm_gradient_gain, .scratch_bytes = gradient_gain_scratch}}});

const AddFusedKernels with_sums({{"layer_norm_gradient_input", "add", gradient_input<true, true>, gradient_and_sum},
                                 {"rms_norm_gradient_input", "add", gradient_input<false, true>, gradient_and_sum}});

}  // namespace
}  // namespace shardrun::device::cuda
