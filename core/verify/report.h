#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/verify/rounding.h"

namespace shardrun::verify {

/// A difference passes if it is at most this many times the error that rounding makes.
inline constexpr double limit = 2;

/// The property of a tensor that is compared.
enum class What : std::uint8_t {
  initial,        ///< initial values, which must be the same with any sharding
  loss,           ///< loss of the whole batch of a step
  gradient,       ///< gradient of a parameter for the whole batch
  gradient_norm,  ///< norm of all gradients before clipping
  update,         ///< a parameter or optimizer state after the step; a field or an output after an iteration
  prediction,     ///< an output of a model that is applied to a batch, or logits of a sequence
  evaluation,     ///< loss of the whole validation data
  replica,        ///< whether ranks that hold the same elements agree, and whether every element is held
};

[[nodiscard]] const char* to_string(What what) noexcept;

/// The difference of a tensor from its expected value.
struct Difference {
  std::string tensor;      ///< its name; for a gradient, the name of its parameter
  std::string state = {};  ///< the name of the compared state; empty if it is `tensor`
  What what = What::loss;
  Size error = {};              ///< the run's values minus the expected ones
  Size rounding = {};           ///< the error that rounding makes; zero: the values must be equal
  double expected = 0;          ///< root mean square of the expected values
  std::int64_t step = 0;        ///< counted from 1, as in metrics.jsonl; initial values belong to step 1
  std::int64_t values = 0;      ///< number of elements compared with the reference
  std::vector<int> ranks = {};  ///< ranks that hold the element with the largest error
  std::string note = {};        ///< a remark about the element with the largest error
  /// The first position at which logits of a sequence differ, from the reference or between ranks, counted from 0;
  /// nothing if they pass.
  std::optional<std::int64_t> position = {};
  std::int64_t line = 0;  ///< the line of a sequence's prompt in its file, counted from 1; 0: not known
  std::string id = {};    ///< JSON of the prompt's id; empty: it has none

  /// The error divided by the error that rounding makes; infinite if there is an error where none is allowed.
  [[nodiscard]] double multiple() const noexcept;
  [[nodiscard]] bool passed() const noexcept { return multiple() <= limit; }
  /// The root mean square of the error, divided by that of the expected values.
  [[nodiscard]] double relative() const noexcept { return error.mean == 0 ? 0 : error.mean / expected; }
  [[nodiscard]] const std::string& own_name() const noexcept { return state.empty() ? tensor : state; }
};

/// For every tensor and compared property, keeps the largest error of all steps and the error that rounding makes.
class Report {
 public:
  void add(Difference difference);
  void count_step() noexcept { ++steps_; }

  /// Whether all differences passed. False if nothing was compared.
  [[nodiscard]] bool passed() const noexcept;
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// The number of pairs of a tensor and a compared property. A pair counts once for all steps.
  [[nodiscard]] std::size_t compared() const noexcept { return worst_.size(); }
  /// The number of pairs that failed in some step.
  [[nodiscard]] std::size_t failed() const;
  /// The number of tensors that were compared: parameters, gradients, optimizer states, fields and single numbers such
  /// as the loss.
  [[nodiscard]] std::size_t tensors() const;
  [[nodiscard]] std::size_t failed_tensors() const;
  /// The mean number of elements per step that were compared with the reference. Initial values and evaluations are not
  /// counted.
  [[nodiscard]] std::int64_t values_per_step() const;
  /// All pairs, sorted by Difference::multiple(), the worst first.
  [[nodiscard]] std::vector<Difference> worst() const;

 private:
  using Pair = std::pair<std::string, What>;
  std::map<Pair, Difference> worst_;
  std::map<Pair, std::set<std::int64_t>> steps_of_;  ///< the steps in which each pair was compared
  std::int64_t steps_ = 0;
};

/// A table of all failures, filled up with the worst other pairs to `rows` rows.
[[nodiscard]] std::string to_text(const Report& report, std::size_t rows = 10);

/// The rows of to_text() as JSON: {"passed", "steps", "compared", "failed", "tensors", "failed_tensors",
/// "values_per_step", "limit", "worst": [{"tensor", "what", "relative", "rounding", "multiple", "step", "ranks",
/// "note"}]}, with "line" and "id" of a sequence's prompt, and "position" if it fails. NaN and infinity become null.
[[nodiscard]] std::string to_json(const Report& report, std::size_t rows = 10);

}  // namespace shardrun::verify
