#include "core/metrics/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <functional>

#include "core/base/human.h"

namespace shardrun::metrics {
namespace {

/// If there are more ranks than this, a line has the minimum and the maximum.
constexpr std::size_t most_ranks_in_line = 4;

constexpr double seconds_of_stretch = 0.2;

using Text = std::function<std::string(double)>;

std::string rate_text(double bytes) { return human_bytes(static_cast<std::uint64_t>(bytes)) + "/s"; }
std::string work_text(double flops) { return human_quantity(flops, "FLOP") + "/s"; }
std::string share_text(double share) { return fmt::format("{:.0f} %", 100 * share); }

/// A text such as "sends 1.20 GiB/s, computes 4.50 TFLOP/s (45 % of [cluster] flops), waits 12 % of the time". `show`
/// formats a number of the rank.
std::string rates_text(const RankRates& first, double rank_flops, const char* ending,
                       const std::function<std::string(double (*)(const RankRates&), const Text&)>& show) {
  std::string text =
      fmt::format("send{} {}, ", ending, show([](const RankRates& rank) { return rank.bandwidth(); }, rate_text));
  if (first.flops > 0) {
    text +=
        fmt::format("compute{} {}", ending, show([](const RankRates& rank) { return rank.flops_per_s(); }, work_text));
    if (rank_flops > 0) {
      text +=
          fmt::format(" ({} of [cluster] flops)", show([](const RankRates& rank) { return rank.flops_per_s(); },
                                                       [&](double flops) { return share_text(flops / rank_flops); }));
    } else if (first.fastest > 0) {
      text += fmt::format(
          " ({} of the rate of {} fastest op)",
          show([](const RankRates& rank) { return rank.fastest > 0 ? rank.flops_per_s() / rank.fastest : 0; },
               share_text),
          *ending == 's' ? "its" : "their");
    }
    text += ", ";
  }
  return text +
         fmt::format("wait{} {} of the time", ending,
                     show([](const RankRates& rank) { return rank.seconds > 0 ? rank.waiting / rank.seconds : 0; },
                          share_text));
}

}  // namespace

void RankRates::add(const RankRates& later) noexcept {
  step = later.step;
  steps += later.steps;
  seconds += later.seconds;
  communicating += later.communicating;
  waiting += later.waiting;
  input += later.input;
  late += later.late;
  starved += later.starved;
  starved_waiting += later.starved_waiting;
  bytes += later.bytes;
  flops += later.flops;
  fastest = later.fastest;
  stopped += later.stopped;
  stops += later.stops;
  others.bytes += slowest.bytes + later.others.bytes;
  others.seconds += slowest.seconds + later.others.seconds;
  slowest = later.slowest;
}

StepRates::StepRates() : sums_{.steps = 0}, stretch_{.steps = 0} {
  for (std::vector<double>& column : columns_) {
    column.resize(most);
  }
}

void StepRates::add(const RankRates& step) noexcept {
  const std::size_t row = static_cast<std::size_t>(sums_.steps) % most;
  columns_[0][row] = step.seconds - step.waiting;
  columns_[1][row] = step.late;
  columns_[2][row] = step.seconds;
  columns_[3][row] = step.waiting;
  columns_[4][row] = step.input;
  sums_.stage = step.stage;
  sums_.add(step);
  stretch_.add(step);
  if (stretch_.seconds >= seconds_of_stretch) {
    columns_[5][static_cast<std::size_t>(stretches_++) % most] = stretch_.starved / static_cast<double>(stretch_.steps);
    stretch_ = {.steps = 0};
  }
}

Quartiles StepRates::quartiles_of(std::vector<double>& column, std::int64_t count) noexcept {
  const std::size_t rows = std::min(most, static_cast<std::size_t>(count));
  std::sort(column.begin(), column.begin() + static_cast<std::ptrdiff_t>(rows));
  return {column[(rows - 1) / 4], column[(rows - 1) / 2], column[(rows - 1) - (rows - 1) / 4]};
}

RankRates StepRates::take() noexcept {
  RankRates taken = sums_;
  taken.busy = quartiles_of(columns_[0], taken.steps);
  taken.late_in_step = quartiles_of(columns_[1], taken.steps);
  taken.usual_seconds = quartiles_of(columns_[2], taken.steps).middle;
  taken.usual_waiting = quartiles_of(columns_[3], taken.steps).middle;
  taken.input_in_step = quartiles_of(columns_[4], taken.steps);
  taken.usual_starved =
      stretches_ > 0 ? quartiles_of(columns_[5], stretches_).middle : taken.starved / static_cast<double>(taken.steps);
  sums_ = stretch_ = {.steps = 0};
  stretches_ = 0;
  return taken;
}

namespace {

/// Calls `each` with every number of a message, in order.
template <typename Rates, typename Each>
void for_fields(Rates& rates, const Each& each) {
  each(rates.step);
  each(rates.steps);
  each(rates.stage);
  each(rates.stops);
  each(rates.slowest.from);
  for (auto* number : {&rates.seconds,
                       &rates.communicating,
                       &rates.waiting,
                       &rates.input,
                       &rates.late,
                       &rates.bytes,
                       &rates.flops,
                       &rates.fastest,
                       &rates.busy.low,
                       &rates.busy.middle,
                       &rates.busy.high,
                       &rates.late_in_step.low,
                       &rates.late_in_step.middle,
                       &rates.late_in_step.high,
                       &rates.usual_seconds,
                       &rates.usual_waiting,
                       &rates.input_in_step.low,
                       &rates.input_in_step.middle,
                       &rates.input_in_step.high,
                       &rates.stopped,
                       &rates.starved,
                       &rates.starved_waiting,
                       &rates.usual_starved,
                       &rates.slowest.bytes,
                       &rates.slowest.seconds,
                       &rates.others.bytes,
                       &rates.others.seconds}) {
    each(*number);
  }
}

}  // namespace

std::string to_text(const RankRates& rates) {
  std::string text;
  for_fields(rates, [&](auto number) { text += fmt::format("{}{}", text.empty() ? "" : " ", number); });
  return text;
}

RankRates rates_of(std::string_view text) noexcept {
  RankRates rates{.steps = 0};
  const char* at = text.data();
  const char* const end = at + text.size();
  for_fields(rates, [&](auto& number) {
    at = std::from_chars(at, end, number).ptr;
    at += at < end ? 1 : 0;
  });
  return rates;
}

std::string rates_line(const std::vector<RankRates>& ranks, double rank_flops) {
  std::string line = fmt::format("step {}: ", ranks.front().step);
  if (ranks.size() <= most_ranks_in_line) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      line += fmt::format("{}rank {} ", rank == 0 ? "" : "; ", rank) +
              rates_text(ranks[rank], rank_flops, "s", [&](double (*number)(const RankRates&), const Text& text) {
                return text(number(ranks[rank]));
              });
    }
    return line;
  }
  return line + fmt::format("{} ranks ", ranks.size()) +
         rates_text(ranks.front(), rank_flops, "", [&](double (*number)(const RankRates&), const Text& text) {
           const auto [least, most] = std::ranges::minmax_element(ranks, {}, number);
           return fmt::format("{} (rank {}) to {} (rank {})", text(number(*least)), least - ranks.begin(),
                              text(number(*most)), most - ranks.begin());
         });
}

}  // namespace shardrun::metrics
