#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/conformance/numbered_samples.h"
#include "core/verify/workload.h"
#include "tests/support/model_cases.h"

namespace shardrun::test {

using conformance::NumberedSamples;

/// A model case with its own samples, from which a workload for verification is made.
struct VerifyCase {
  explicit VerifyCase(ModelCase given) : model(std::move(given)), samples(model.vocabulary) {}

  [[nodiscard]] verify::Workload workload() const {
    return {.graph = model.graph,
            .microbatch_rows = model.microbatch_rows,
            .evaluation_rows = model.evaluation_rows,
            .dataset = &samples,
            .seed = 17,
            .learning_rate = [](std::int64_t step) { return 0.01 / static_cast<double>(step + 1); }};
  }

  ModelCase model;
  NumberedSamples samples;
};

/// The smallest gpt with biases and a separate output table. A step has 3 samples in 2 microbatches.
[[nodiscard]] inline VerifyCase small_gpt() {
  return VerifyCase(training_case(
      "gpt", "gpt",
      {{"layers", "1"}, {"heads", "2"}, {"width", "4"}, {"context", "3"}, {"bias", "true"}, {"tied", "false"}},
      {.vocab = 5}, {.batch = 3, .microbatches = 2, .eval_rows = 2, .eval_samples = 3, .optimizer = {.clip = 0.5}}));
}

}  // namespace shardrun::test
