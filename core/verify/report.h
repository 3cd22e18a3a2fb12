#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/verify/rounding.h"

namespace shardrun::verify {

/// A difference passes up to so many times what rounding makes of it.
inline constexpr double limit = 2;

/// The compared property of a tensor.
enum class What : std::uint8_t {
  initial,        ///< its first values, the same with any sharding
  loss,           ///< over the whole batch of a step
  gradient,       ///< of the whole batch, for one parameter
  gradient_norm,  ///< before clipping
  update,         ///< a parameter or optimizer state after the step; a field or an output after an iteration
  prediction,     ///< an output of a model that is applied to a batch
  evaluation,     ///< the loss over the whole validation part
  replica,        ///< that parts held by several ranks are equal, and that every element is held
};

[[nodiscard]] const char* to_string(What what) noexcept;

/// The difference of a tensor from its expected value.
struct Difference {
  std::string tensor;      ///< its name; for a gradient, the name of its parameter
  std::string state = {};  ///< the state's name; empty if that is `tensor`
  What what = What::loss;
  Size error = {};              ///< of the run's values less the expected ones
  Size rounding = {};           ///< the error that rounding makes: see Roundings; zero: there must be no error
  double expected = 0;          ///< the root mean square of the expected values
  std::int64_t step = 0;        ///< from 1, as in metrics.jsonl; 0: before the first
  std::int64_t values = 0;      ///< number of elements compared with the reference
  std::vector<int> ranks = {};  ///< those that hold the worst element
  std::string note = {};        ///< about that element

  /// How many times what rounding makes of it the error is; infinite where there must be none.
  [[nodiscard]] double multiple() const noexcept;
  [[nodiscard]] bool passed() const noexcept { return multiple() <= limit; }
  /// The error relative to the expected values.
  [[nodiscard]] double relative() const noexcept { return error.mean == 0 ? 0 : error.mean / expected; }
  [[nodiscard]] const std::string& own_name() const noexcept { return state.empty() ? tensor : state; }
};

/// Keeps, for every tensor and everything compared of it, the largest error of all steps, and what rounding makes.
class Report {
 public:
  void add(Difference difference);
  void count_step() noexcept { ++steps_; }

  /// False if nothing has been compared.
  [[nodiscard]] bool passed() const noexcept;
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// Pairs of a tensor and a compared property; a pair counts once for all steps.
  [[nodiscard]] std::size_t compared() const noexcept { return worst_.size(); }
  /// Pairs that failed at some step.
  [[nodiscard]] std::size_t failed() const;
  /// Number of tensors in the pairs: parameters, gradients, optimizer states, fields and single numbers such as the
  /// loss.
  [[nodiscard]] std::size_t tensors() const;
  [[nodiscard]] std::size_t failed_tensors() const;
  /// Elements per step that are compared with the reference: of losses, gradients and updated tensors.
  [[nodiscard]] std::int64_t values_per_step() const;
  /// Sorted by the multiple, the worst first.
  [[nodiscard]] std::vector<Difference> worst() const;

 private:
  std::map<std::pair<std::string, What>, Difference> worst_;
  std::int64_t steps_ = 0;
};

/// A table of all failures, and of the worst others up to `rows` rows in all.
[[nodiscard]] std::string to_text(const Report& report, std::size_t rows = 10);

/// {"passed", "steps", "compared", "failed", "tensors", "failed_tensors", "values_per_step", "limit", "worst":
/// [{"tensor", "what", "relative", "rounding", "multiple", "step", "ranks", "note"}]} with the same entries. Numbers
/// that are not finite are null.
[[nodiscard]] std::string to_json(const Report& report, std::size_t rows = 10);

}  // namespace shardrun::verify
