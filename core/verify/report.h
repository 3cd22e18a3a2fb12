#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace shardrun::verify {

/// What of a tensor was compared.
enum class What : std::uint8_t {
  initial,        ///< its first values, which are the same on any sharding
  loss,           ///< over the whole batch of a step
  gradient,       ///< likewise, of one parameter
  gradient_norm,  ///< before clipping
  update,         ///< a parameter, or a state of its optimizer, after the step; a field after an iteration
  evaluation,     ///< the loss over the whole validation part
  replica,        ///< parts that several ranks hold, and whether every element is held at all
};

[[nodiscard]] const char* to_string(What what) noexcept;

/// How far a tensor is from what it should be.
struct Difference {
  std::string tensor;      ///< its name; of a gradient that of its parameter
  std::string state = {};  ///< its own name where `tensor` is another's; empty: the same
  What what = What::loss;
  double relative = 0;          ///< as it is judged: norm of the difference over that of what is expected and its floor
  double tolerance = 0;         ///< the largest `relative` that rounding explains
  double unfloored = 0;         ///< norm of the difference over the norm of what is expected alone
  std::int64_t step = 0;        ///< from 1, as in metrics.jsonl; 0: before the first
  std::int64_t values = 0;      ///< elements that were compared with the reference
  std::vector<int> ranks = {};  ///< that hold the worst element
  std::string note = {};        ///< about that element

  [[nodiscard]] bool passed() const noexcept;
  [[nodiscard]] const std::string& own_name() const noexcept { return state.empty() ? tensor : state; }
};

/// Of every tensor and of everything compared of it, the step at which it was furthest off.
class Report {
 public:
  void add(Difference difference);
  void count_step() noexcept { ++steps_; }

  /// False also where nothing has been compared.
  [[nodiscard]] bool passed() const noexcept;
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// Pairs of a tensor and what was compared of it; a pair counts once for all steps.
  [[nodiscard]] std::size_t compared() const noexcept { return worst_.size(); }
  /// Of these pairs those that failed at some step.
  [[nodiscard]] std::size_t failed() const;
  /// Tensors of the pairs: parameters, gradients, optimizer's states, fields and single numbers such as the loss.
  [[nodiscard]] std::size_t tensors() const;
  [[nodiscard]] std::size_t failed_tensors() const;
  /// Elements that a step leaves and that are compared with the reference: of losses, gradients and updated tensors.
  [[nodiscard]] std::int64_t values_per_step() const;
  /// Sorted by `relative / tolerance`, the worst first.
  [[nodiscard]] std::vector<Difference> worst() const;

 private:
  std::map<std::pair<std::string, What>, Difference> worst_;
  std::int64_t steps_ = 0;
};

/// A table of everything that failed, and of the worst others up to `rows` in all.
[[nodiscard]] std::string to_text(const Report& report, std::size_t rows = 10);

/// {"passed", "steps", "compared", "failed", "tensors", "failed_tensors", "values_per_step", "worst": [{"tensor",
/// "what", "relative", "tolerance", "unfloored", "step", "ranks", "note"}]}, with the same entries; numbers are null
/// where they are not finite.
[[nodiscard]] std::string to_json(const Report& report, std::size_t rows = 10);

}  // namespace shardrun::verify
