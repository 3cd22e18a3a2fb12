#include "core/device/cuda/columns.h"
#include "core/device/cuda/rows.h"

// Layer norm and RMS norm, over the last dimension. Statistics are float32 in registers; each row is read again from
// the cache. x, y, dy, dx: [L, E]   gain, bias, dgain: [E]   mean, rstd: [L]

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
    float sum = 0;
    team.template loop<pack, 4>(width, load, [&](std::int64_t, const Pack<pack>& values) {
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { sum += values[k]; }
    });
    const float average = team.sum(sum) / count;
    float squares = 0;
    team.template loop<pack, 4>(width, load, [&](std::int64_t, const Pack<pack>& values) {
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) {
        const float deviation = values[k] - average;
        squares += deviation * deviation;
      }
    });
    const float scale = 1.0F / FloatMath::sqrt(team.sum(squares) / count + epsilon);
    team.template loop<pack, 2>(width, load, [&](std::int64_t e, const Pack<pack>& values) {
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
    float squares = 0;
    team.template loop<pack, 4>(width, load, [&](std::int64_t, const Pack<pack>& values) {
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { squares += values[k] * values[k]; }
    });
    const float scale = 1.0F / FloatMath::sqrt(team.sum(squares) / static_cast<float>(width) + epsilon);
    team.template loop<pack, 2>(width, load, [&](std::int64_t e, const Pack<pack>& values) {
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
/// its gradient no average(g).
struct GradientInput {
  Reals dy;
  Reals x;
  Reals gain;
  Reals mean;
  bool has_mean;
  Reals rstd;
  Reals dx;
  std::int64_t width;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t from = row * width;
    const float average = has_mean ? mean.get(row) : 0.0F;
    const float scale = rstd.get(row);
    struct Loaded {
      Pack<pack> values;
      Pack<pack> gradients;
    };
    const auto load = [&](std::int64_t e) { return Loaded{x.get_pack<pack>(from + e), dy.get_pack<pack>(from + e)}; };
    float sum_g = 0;
    float sum_gn = 0;
    team.template loop<pack, 2>(width, load, [&](std::int64_t e, const Loaded& loaded) {
      const Pack<pack> gains = gain.get_pack<pack>(e);
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) {
        const float g = loaded.gradients[k] * gains[k];
        sum_g += g;
        sum_gn += g * ((loaded.values[k] - average) * scale);
      }
    });
    const float average_g = has_mean ? team.sum(sum_g) / static_cast<float>(width) : 0.0F;
    const float average_gn = team.sum(sum_gn) / static_cast<float>(width);
    team.template loop<pack, 2>(width, load, [&](std::int64_t e, const Loaded& loaded) {
      const Pack<pack> gains = gain.get_pack<pack>(e);
      Pack<pack> results;
      SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) {
        const float n = (loaded.values[k] - average) * scale;
        results[k] = scale * (loaded.gradients[k] * gains[k] - average_g - n * average_gn);
      }
      dx.set_pack(from + e, results);
    });
  }
};

void gradient_input(const KernelCall& call, bool has_mean) {
  const std::int64_t width = columns(call.inputs[1]);
  for_each_row(call, rows(call.inputs[1]), width,
               GradientInput{.dy = reals(call.inputs[0]),
                             .x = reals(call.inputs[1]),
                             .gain = reals(call.inputs[2]),
                             .mean = has_mean ? reals(call.inputs[3]) : Reals{},
                             .has_mean = has_mean,
                             .rstd = reals(call.inputs[has_mean ? 4 : 3]),
                             .dx = reals(call.outputs[0]),
                             .width = width});
}

void layer_norm_gradient_input(const KernelCall& call) { gradient_input(call, true); }
void rms_norm_gradient_input(const KernelCall& call) { gradient_input(call, false); }

/// dgain[e] = sum over rows of dy (x - mean) rstd.
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
     {"layer_norm_gradient_input", {.run = layer_norm_gradient_input}},
     {"layer_norm_gradient_gain", {.run = layer_norm_gradient_gain, .scratch_bytes = gradient_gain_scratch}},
     {"rms_norm", {.run = rms_norm}},
     {"rms_norm_gradient_input", {.run = rms_norm_gradient_input}},
     {"rms_norm_gradient_gain", {.run = rms_norm_gradient_gain, .scratch_bytes = gradient_gain_scratch}}});

}  // namespace
}  // namespace shardrun::device::cuda
