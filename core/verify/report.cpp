#include "core/verify/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/metrics/human.h"
#include "core/metrics/json_text.h"

namespace shardrun::verify {
namespace {

/// NaN is further off than any number.
double badness(const Difference& difference) noexcept {
  if (std::isnan(difference.relative)) {
    return std::numeric_limits<double>::infinity();
  }
  if (difference.tolerance == 0) {
    return difference.relative == 0 ? 0 : std::numeric_limits<double>::infinity();
  }
  return difference.relative / difference.tolerance;
}

/// What failed, and as many others as there is room for.
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
  metrics::append_json(text, difference.relative);
  text += R"(, "tolerance": )";
  metrics::append_json(text, difference.tolerance);
  text += R"(, "unfloored": )";
  metrics::append_json(text, difference.unfloored);
  text += fmt::format(R"(, "step": {}, "ranks": [{}], "note": )", difference.step, fmt::join(difference.ranks, ", "));
  metrics::append_json(text, std::string_view(difference.note));
  text += "}";
}

}  // namespace

const char* to_string(What what) noexcept {
  switch (what) {
    case What::initial: return "initial";
    case What::loss: return "loss";
    case What::gradient: return "gradient";
    case What::gradient_norm: return "gradient_norm";
    case What::update: return "update";
    case What::evaluation: return "evaluation";
    case What::replica: return "replica";
  }
  return "";
}

bool Difference::passed() const noexcept { return badness(*this) <= 1; }

void Report::add(Difference difference) {
  const auto [at, is_new] = worst_.try_emplace({difference.tensor, difference.what}, difference);
  if (!is_new && badness(difference) > badness(at->second)) {
    at->second = std::move(difference);
  }
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
                   [](const Difference& a, const Difference& b) { return badness(a) > badness(b); });
  return sorted;
}

std::string to_text(const Report& report, std::size_t rows) {
  const std::vector<Difference> worst = shown(report, rows);
  std::size_t width = 6;
  for (const Difference& difference : worst) {
    width = std::max(width, difference.tensor.size());
  }
  std::string text = fmt::format("{:<{}}  {:<13}  {:>9}  {:>9}  {:>9}  {:>5}\n", "tensor", width, "what", "relative",
                                 "tolerance", "unfloored", "step");
  for (const Difference& difference : worst) {
    text += fmt::format("{:<{}}  {:<13}  {:>9.2e}  {:>9.0e}  {:>9.2e}  {:>5}{}", difference.tensor, width,
                        to_string(difference.what), difference.relative, difference.tolerance, difference.unfloored,
                        difference.step, difference.passed() ? "" : "  FAILED");
    if (!difference.passed() && !difference.note.empty()) {
      text += ": " + difference.note;
    }
    text += "\n";
  }
  const std::vector<Difference> all = report.worst();
  const auto failed = std::count_if(all.begin(), all.end(), [](const Difference& each) { return !each.passed(); });
  const std::string result =
      report.passed() ? std::string("passed") : fmt::format("failed in {} of {} tensors", failed, all.size());
  return text + fmt::format("{}: {} with the float64 reference over {}\n", result,
                            metrics::counted(static_cast<std::int64_t>(report.compared()), "comparison"),
                            metrics::counted(report.steps(), "step"));
}

std::string to_json(const Report& report, std::size_t rows) {
  std::string text = fmt::format(R"({{"passed": {}, "steps": {}, "compared": {}, "worst": [)", report.passed(),
                                 report.steps(), report.compared());
  const char* separator = "";
  for (const Difference& difference : shown(report, rows)) {
    text += separator;
    append_json(text, difference);
    separator = ", ";
  }
  return text + "]}";
}

}  // namespace shardrun::verify
