#include "rotation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

// Frequencies of rotary positions, scaled for longer contexts. They are computed in float32 and in the same order of
// operations as when the models were trained.

namespace llama {
namespace {

using namespace shardrun::sdk;

double required(const OptionValues& options, const char* name) {
  if (!options.has(name)) {
    throw InvalidJob("[model] scaling = " + options.text("scaling") + " needs " + name, std::string("model.") + name);
  }
  return options.number(name);
}

/// The frequencies without scaling: 1 / base^(2i / head_dim) for i = 0 to head_dim / 2 - 1.
std::vector<float> unscaled(double base, std::int64_t head_dim) {
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    const float share = static_cast<float>(i) / static_cast<float>(head_dim);
    frequencies.push_back(1.0F / static_cast<float>(std::pow(base, static_cast<double>(share))));
  }
  return frequencies;
}

/// Scales as Llama 3.1 does (Meta, 2024): divides low frequencies by the factor, keeps high ones, and interpolates
/// between.
void scale_llama3(const OptionValues& options, std::vector<float>& frequencies) {
  const auto factor = static_cast<float>(required(options, "scaling_factor"));
  const double low = options.number("low_frequency_factor");
  const double high = options.number("high_frequency_factor");
  const double original = required(options, "original_context");
  if (low >= high) {
    throw InvalidJob("[model] low_frequency_factor is not below high_frequency_factor", "model.low_frequency_factor");
  }
  for (float& frequency : frequencies) {
    const float wave = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wave > static_cast<float>(original / low)) {
      frequency = frequency / factor;
    } else if (!(wave < static_cast<float>(original / high))) {
      const float smooth =
          (static_cast<float>(original) / wave - static_cast<float>(low)) / static_cast<float>(high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

/// The index, as a real number, of the pair of columns that makes `turns` full turns in the original context. Peng et
/// al. 2023, arXiv:2309.00071.
double pair_of(double turns, double original, double base, std::int64_t head_dim) {
  return static_cast<double>(head_dim) * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

/// Scales as YaRN does (Peng et al. 2023, arXiv:2309.00071, section 3): keeps high frequencies, divides low ones by the
/// factor, and interpolates linearly between.
void scale_yarn(const OptionValues& options, std::int64_t head_dim, std::vector<float>& frequencies) {
  const double base = options.number("theta");
  const double original = required(options, "original_context");
  const auto factor = static_cast<float>(required(options, "scaling_factor"));
  double low = pair_of(options.number("beta_fast"), original, base, head_dim);
  double high = pair_of(options.number("beta_slow"), original, base, head_dim);
  if (options.boolean("whole_pairs")) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) {
    high += 0.001;  // avoids a division by zero
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float along = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1 - std::clamp(along, 0.0F, 1.0F);
    const float stretched = 1.0F / (factor * (1.0F / frequencies[i]));
    frequencies[i] = stretched * (1 - kept) + frequencies[i] * kept;
  }
}

/// The factor by which queries and keys are multiplied (Peng et al. 2023, arXiv:2309.00071, section 3.4).
double yarn_factor(const OptionValues& options) {
  if (options.has("attention_factor")) {
    return options.number("attention_factor");
  }
  const double factor = options.number("scaling_factor");
  return factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0;
}

}  // namespace

std::vector<shardrun::sdk::Option> rotation_options() {
  return {
      also_called(number_option("theta", 10000, 1, 1e12, "base of the rotary embedding"), "rope_theta rotary_base"),
      text_option("scaling", "none", {"none", "linear", "llama3", "yarn"},
                  "how frequencies of the rotary embedding are changed for contexts longer than the original one"),
      optional(number_option("scaling_factor", 1, 1e-3, 1e6, "how many times longer the context has become")),
      optional(number_option("original_context", 1, 1, 1e9, "llama3, yarn: the context before")),
      number_option("low_frequency_factor", 1, 1e-6, 1e6,
                    "llama3: waves longer than original_context by this are stretched"),
      number_option("high_frequency_factor", 4, 1e-6, 1e6,
                    "llama3: waves shorter than original_context by this are kept"),
      number_option("beta_fast", 32, 1e-6, 1e6, "yarn: pairs that turn this often in the original context are kept"),
      number_option("beta_slow", 1, 1e-6, 1e6, "yarn: pairs that turn no more often than this are stretched"),
      optional(number_option("attention_factor", 1, 1e-6, 1e6,
                             "yarn: factor of queries and keys; 0.1 ln(scaling_factor) + 1 if it is left out")),
      boolean_option("whole_pairs", true, "yarn: its ramp begins and ends at whole pairs"),
  };
}

shardrun::sdk::Rope rotation(const shardrun::sdk::OptionValues& options, std::int64_t head_dim) {
  const std::string scaling = options.text("scaling");
  Rope how{.base = options.number("theta")};
  if (scaling == "none") {
    return how;
  }
  std::vector<float> frequencies = unscaled(how.base, head_dim);
  if (scaling == "linear") {
    const auto factor = static_cast<float>(required(options, "scaling_factor"));
    std::ranges::for_each(frequencies, [=](float& frequency) { frequency /= factor; });
  } else if (scaling == "llama3") {
    scale_llama3(options, frequencies);
  } else {
    scale_yarn(options, head_dim, frequencies);
    how.factor = yarn_factor(options);
  }
  how.frequencies.assign(frequencies.begin(), frequencies.end());
  return how;
}

}  // namespace llama
