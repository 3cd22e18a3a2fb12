#include "core/verify/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/base/human.h"
#include "core/metrics/json_text.h"

namespace shardrun::verify {
namespace {

/// `found` as a multiple of `rounding`.
double share(double found, double rounding) noexcept {
  const double multiple = found / rounding;
  return found == 0 ? 0 : std::isnan(multiple) ? std::numeric_limits<double>::infinity() : multiple;
}

/// The differences to print: all that failed, and the worst others until there are `rows`.
std::vector<Difference> shown(const Report& report, std::size_t rows) {
  std::vector<Difference> worst = report.worst();
  const auto failed = static_cast<std::size_t>(
      std::count_if(worst.begin(), worst.end(), [](const Difference& difference) { return !difference.passed(); }));
  worst.resize(std::min(worst.size(), std::max(failed, rows)));
  return worst;
}

void append_json(std::string& text, const Difference& difference) {
  text += R"({"tensor": )";
  metrics::append_json(text, std::string_view(difference.tensor));
  text += R"(, "what": )";
  metrics::append_json(text, std::string_view(to_string(difference.what)));
  text += R"(, "relative": )";
  metrics::append_json(text, difference.relative());
  text += R"(, "rounding": )";
  metrics::append_json(text, share(difference.rounding.mean, difference.expected));
  text += R"(, "multiple": )";
  metrics::append_json(text, difference.multiple());
  text += fmt::format(R"(, "step": {}, "ranks": [{}], "note": )", difference.step, fmt::join(difference.ranks, ", "));
  metrics::append_json(text, std::string_view(difference.note));
  text += difference.line > 0 ? fmt::format(R"(, "line": {})", difference.line) : "";
  text += difference.id.empty() ? "" : fmt::format(R"(, "id": {})", difference.id);
  text += difference.position ? fmt::format(R"(, "position": {}}})", *difference.position) : "}";
}

}  // namespace

const char* to_string(What what) noexcept {
  switch (what) {
    case What::initial: return "initial";
    case What::loss: return "loss";
    case What::gradient: return "gradient";
    case What::gradient_norm: return "gradient_norm";
    case What::update: return "update";
    case What::prediction: return "prediction";
    case What::evaluation: return "evaluation";
    case What::replica: return "replica";
  }
  return "";
}

double Difference::multiple() const noexcept {
  return std::max(share(error.mean, rounding.mean), share(error.largest, rounding.largest));
}

void Report::add(Difference difference) {
  const auto [at, is_new] = worst_.try_emplace({difference.tensor, difference.what}, difference);
  steps_of_[at->first].insert(difference.step);
  Difference& worst = at->second;
  if (is_new || std::isinf(worst.multiple())) {
    return;
  }
  if (std::isinf(difference.multiple())) {
    worst = std::move(difference);
    return;
  }
  const Size error = larger(worst.error, difference.error);
  const Size rounding = larger(worst.rounding, difference.rounding);
  if (difference.error.largest > worst.error.largest) {
    worst = std::move(difference);
  }
  worst.error = error;
  worst.rounding = rounding;
}

bool Report::passed() const noexcept {
  return !worst_.empty() &&
         std::all_of(worst_.begin(), worst_.end(), [](const auto& entry) { return entry.second.passed(); });
}

std::vector<Difference> Report::worst() const {
  std::vector<Difference> sorted;
  for (const auto& [key, difference] : worst_) {
    sorted.push_back(difference);
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Difference& a, const Difference& b) { return a.multiple() > b.multiple(); });
  return sorted;
}

std::size_t Report::failed() const {
  return static_cast<std::size_t>(
      std::count_if(worst_.begin(), worst_.end(), [](const auto& entry) { return !entry.second.passed(); }));
}

std::size_t Report::tensors() const {
  std::set<std::string> names;
  for (const auto& [key, difference] : worst_) {
    names.insert(difference.own_name());
  }
  return names.size();
}

std::size_t Report::failed_tensors() const {
  std::set<std::string> names;
  for (const auto& [key, difference] : worst_) {
    if (!difference.passed()) {
      names.insert(difference.own_name());
    }
  }
  return names.size();
}

std::int64_t Report::values_per_step() const {
  std::int64_t values = 0;
  for (const auto& [key, difference] : worst_) {
    const bool is_of_each_step = difference.what != What::initial && difference.what != What::evaluation;
    values += is_of_each_step ? difference.values * std::ssize(steps_of_.at(key)) : 0;
  }
  return values / std::max<std::int64_t>(steps_, 1);
}

std::string to_text(const Report& report, std::size_t rows) {
  const std::vector<Difference> worst = shown(report, rows);
  std::size_t width = 6;
  for (const Difference& difference : worst) {
    width = std::max(width, difference.tensor.size());
  }
  std::string text = fmt::format("{:<{}}  {:<13}  {:>8}  {:>8}  {:>8}  {:>5}\n", "tensor", width, "what", "relative",
                                 "rounding", "multiple", "step");
  for (const Difference& difference : worst) {
    text += fmt::format("{:<{}}  {:<13}  {:>8.2e}  {:>8.2e}  {:>8.3g}  {:>5}{}", difference.tensor, width,
                        to_string(difference.what), difference.relative(),
                        share(difference.rounding.mean, difference.expected), difference.multiple(), difference.step,
                        difference.passed() ? "" : "  FAILED");
    if (!difference.passed() && !difference.note.empty()) {
      text += ": " + difference.note;
    }
    text += "\n";
  }
  text += fmt::format(
      "compared with the float64 reference: {}, {} a step, over {}; up to {} times what rounding does passes\n",
      counted(static_cast<std::int64_t>(report.tensors()), "tensor"), counted(report.values_per_step(), "value"),
      counted(report.steps(), "step"), limit);
  const std::string all = counted(static_cast<std::int64_t>(report.compared()), "comparison");
  const char* const meaning = "(each is a tensor and what of it, at its worst step)";
  return text + (report.passed() ? fmt::format("passed: {} {}\n", all, meaning)
                                 : fmt::format("failed: {} of {} {}, in {} of the tensors\n", report.failed(), all,
                                               meaning, report.failed_tensors()));
}

std::string to_json(const Report& report, std::size_t rows) {
  std::string text =
      fmt::format(R"({{"passed": {}, "steps": {}, "compared": {}, "failed": {}, "tensors": {}, "failed_tensors": {}, )"
                  R"("values_per_step": {}, "limit": {}, "worst": [)",
                  report.passed(), report.steps(), report.compared(), report.failed(), report.tensors(),
                  report.failed_tensors(), report.values_per_step(), limit);
  const char* separator = "";
  for (const Difference& difference : shown(report, rows)) {
    text += separator;
    append_json(text, difference);
    separator = ", ";
  }
  return text + "]}\n";
}

}  // namespace shardrun::verify
