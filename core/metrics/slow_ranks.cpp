#include "core/metrics/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>

#include "core/base/human.h"
#include "core/base/median.h"

namespace shardrun::metrics {
namespace {

/// The least share of a step by which a slow rank holds up the others; half of it for a rank that was found already.
constexpr double least_share = 0.1;
/// Seconds of a step by which a rank's transfers begin late, at least: a transport's thread takes some time to wake up,
/// more on some cores than on others.
constexpr double least_late = 1e-3;
/// A rank is found after two clear reports in a row, or after six if they are not clear, which cover ten steps or
/// so many seconds. A report is clear if the numbers of the rank and of its reference lie farther apart than they vary.
constexpr std::int64_t weight_of_clear = 3;
constexpr std::int64_t weight_of_unclear = 1;
constexpr std::int64_t least_weight = 6;
constexpr std::int64_t least_steps = 10;
constexpr double least_seconds = 5;
/// The quartiles of fewer steps than this say little of how much they vary: such a report is clear if the rank holds up
/// the others for this share of a step, and then weighs less.
constexpr std::int64_t steps_of_quartiles = 4;
constexpr double least_share_of_few = 0.5;
constexpr std::int64_t weight_of_few = 2;

// A rank alone in its stage is slow if it is busy for more than this many times what its number of operations lets
// expect, or what was usual for it in at least `reports_of_usual` reports. Stages have other ops, of other speeds.
constexpr double most_of_expected = 2;
constexpr double most_of_usual = 1.5;
constexpr std::int64_t reports_of_usual = 3;

Quartiles times(double factor, const Quartiles& quartiles) {
  return {factor * quartiles.low, factor * quartiles.middle, factor * quartiles.high};
}

double spread_of(const Quartiles& quartiles) { return quartiles.high - quartiles.low; }

/// The time with which a rank's time is compared: that of the slowest of the other ranks. In larger groups other
/// ranks may be slow as well, up to almost half of them in all; then it is that of the slowest of the rest.
Quartiles reference_among(std::vector<Quartiles> others) {
  std::ranges::sort(others, std::ranges::greater(), &Quartiles::high);
  return others[others.size() < 3 ? 0 : others.size() / 2 - 1];
}

/// How many times as many operations a rank has as another; at least 1, also if they are not known.
double ratio_of_flops(const RankRates& rank, const RankRates& other) {
  return rank.flops > 0 && other.flops > 0 ? std::max(1.0, rank.flops / other.flops) : 1;
}

/// By how much a rank holds up the others in a report, and why.
struct Behind {
  double seconds = 0;
  SlowRank::Cause cause = SlowRank::Cause::compute;
  std::int64_t weight = 0;  ///< of the report
};

/// A report of all ranks.
class Report {
 public:
  explicit Report(const std::vector<RankRates>& ranks) : ranks_(ranks) {
    for (const RankRates& rank : ranks) {
      step_ = std::max(step_, rank.usual_seconds);
    }
  }

  /// The length of a step, which is that of the rank with the longest one.
  [[nodiscard]] double step() const noexcept { return step_; }

  /// Nothing if the rank does not hold up the others. `is_found`: it did so before, so it is as fast as they are only
  /// if its median is. `usual`: seconds for which the rank is usually busy, if known.
  [[nodiscard]] std::optional<Behind> behind(std::size_t rank, bool is_found, std::optional<double> usual) const {
    const std::optional<Behind> busy = behind_by_busy(rank, is_found, usual);
    const std::optional<Behind> late = behind_by_late(rank, is_found);
    return busy && late ? (busy->seconds >= late->seconds ? busy : late) : busy ? busy : late;
  }

  [[nodiscard]] bool is_alone(std::size_t rank) const {
    return std::ranges::count(ranks_, ranks_[rank].stage, &RankRates::stage) == 1;
  }

 private:
  /// Calls `of` with each other rank.
  template <typename Of>
  [[nodiscard]] auto others(std::size_t rank, const Of& of) const {
    std::vector<decltype(of(ranks_.front()))> all;
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      if (other != rank) {
        all.push_back(of(ranks_[other]));
      }
    }
    return all;
  }

  [[nodiscard]] Quartiles busy_of_others(std::size_t rank, std::optional<double> usual) const {
    const RankRates& own = ranks_[rank];
    if (!is_alone(rank)) {
      std::vector<Quartiles> peers;
      for (const RankRates& other : ranks_) {
        if (&other != &own && other.stage == own.stage) {
          peers.push_back(times(ratio_of_flops(own, other), other.busy));
        }
      }
      return reference_among(peers);
    }
    Quartiles reference = reference_among(others(rank, [&](const RankRates& other) {
      return times(own.flops > 0 && other.flops > 0 ? own.flops / other.flops : 1, other.busy);
    }));
    reference.high = most_of_expected * reference.high;
    if (usual && most_of_usual * *usual < reference.high) {
      reference = {*usual, *usual, most_of_usual * *usual};
    }
    return reference;
  }

  /// The least number of seconds that counts.
  [[nodiscard]] double least(bool is_found) const noexcept {
    return (is_found ? least_share / 2 : least_share) * step_;
  }

  /// `apart`: by how much the rank's numbers exceed those of its reference, which vary by `spread`.
  [[nodiscard]] std::int64_t weight(double apart, double spread) const noexcept {
    if (ranks_.front().steps < steps_of_quartiles) {
      return apart >= least_share_of_few * step_ ? weight_of_few : weight_of_unclear;
    }
    return apart >= spread ? weight_of_clear : weight_of_unclear;
  }

  [[nodiscard]] std::optional<Behind> behind_by_busy(std::size_t rank, bool is_found,
                                                     std::optional<double> usual) const {
    const RankRates& own = ranks_[rank];
    const Quartiles reference = busy_of_others(rank, usual);
    const double apart = is_found ? own.busy.middle - (is_alone(rank) ? reference.high : reference.middle)
                                  : own.busy.low - reference.high;
    if (apart < least(is_found)) {
      return std::nullopt;
    }
    const double seconds = std::min(own.busy.middle - reference.middle, step_);
    const double input =
        own.usual_input - median(others(rank, [](const RankRates& other) { return other.usual_input; }));
    return Behind{seconds, 2 * input >= seconds ? SlowRank::Cause::input : SlowRank::Cause::compute,
                  weight(apart, spread_of(own.busy) + (is_alone(rank) ? 0 : spread_of(reference)))};
  }

  /// Transfers that begin late hold up the others for as long as these wait, at most.
  [[nodiscard]] std::optional<Behind> behind_by_late(std::size_t rank, bool is_found) const {
    const RankRates& own = ranks_[rank];
    const Quartiles reference =
        reference_among(others(rank, [](const RankRates& other) { return other.late_in_step; }));
    const double apart = is_found ? own.late_in_step.middle - reference.middle : own.late_in_step.low - reference.high;
    const double waiting = median(others(rank, [](const RankRates& other) { return other.usual_waiting; }));
    if (std::min(apart, waiting) < std::max(least(is_found), least_late)) {
      return std::nullopt;
    }
    return Behind{std::min(own.late_in_step.middle - reference.middle, waiting), SlowRank::Cause::transfer,
                  weight(apart, spread_of(own.late_in_step) + spread_of(reference))};
  }

  const std::vector<RankRates>& ranks_;
  double step_ = 0;
};

const char* place_of(SlowRank::Cause cause) {
  switch (cause) {
    case SlowRank::Cause::compute: return "in computing";
    case SlowRank::Cause::transfer: return "in transfers, which its transport begins late";
    case SlowRank::Cause::input: return "in reading its input";
  }
  return "";
}

std::string name_of(const SlowRank& slow) {
  return slow.host.empty() ? fmt::format("rank {}", slow.rank) : fmt::format("rank {} (host {})", slow.rank, slow.host);
}

}  // namespace

const char* to_string(SlowRank::Cause cause) noexcept {
  switch (cause) {
    case SlowRank::Cause::compute: return "compute";
    case SlowRank::Cause::transfer: return "transfer";
    case SlowRank::Cause::input: return "input";
  }
  return "";
}

std::string line_of_begin(const SlowRank& slow) {
  return fmt::format("{} holds up the others since step {}: {} a step ({:.0f} %), {}", name_of(slow), slow.first_step,
                     human_time(slow.behind_s), 100 * slow.share, place_of(slow.cause));
}

std::string line_of_end(const SlowRank& slow) {
  return fmt::format("{} has not held up the others since step {}", name_of(slow), slow.last_step + 1);
}

std::string text_of(const std::vector<SlowRank>& slow_ranks) {
  if (slow_ranks.empty()) {
    return "";
  }
  const SlowRank& worst = *std::ranges::max_element(slow_ranks, {}, [](const SlowRank& slow) {
    return slow.behind_s * static_cast<double>(slow.last_step - slow.first_step + 1);
  });
  const std::string more =
      slow_ranks.size() == 1 ? "" : fmt::format(", and {} more in summary.json", slow_ranks.size() - 1);
  return fmt::format("{} held up the others in steps {} to {} ({} a step, {}){}", name_of(worst), worst.first_step,
                     worst.last_step, human_time(worst.behind_s), place_of(worst.cause), more);
}

void SlowRanks::Streak::add(const RankRates& rank, double behind_of_step, SlowRank::Cause cause, double step) {
  first_step = steps == 0 ? rank.step - rank.steps + 1 : first_step;
  last_step = rank.step;
  steps += rank.steps;
  behind[cause] += behind_of_step * static_cast<double>(rank.steps);
  seconds += step * static_cast<double>(rank.steps);
  reports += place ? 0 : 1;
  missed = 0;
}

SlowRank SlowRanks::Streak::slow(std::int64_t rank, const std::string& host) const {
  double all = 0;
  for (const auto& [cause, of_cause] : behind) {
    all += of_cause;
  }
  return {.rank = rank,
          .host = host,
          .cause = std::ranges::max_element(behind, {}, [](const auto& each) { return each.second; })->first,
          .first_step = first_step,
          .last_step = last_step,
          .behind_s = all / static_cast<double>(steps),
          .share = seconds > 0 ? all / seconds : 0};
}

std::vector<double> SlowRanks::others_by_usual(const std::vector<RankRates>& ranks) const {
  std::vector<double> all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<double> of_others;
    for (const auto& [other, usual] : usual_) {
      const auto number = static_cast<std::size_t>(other);
      if (number != rank && number < ranks.size() && usual.reports >= reports_of_usual && usual.seconds > 0) {
        of_others.push_back(ranks[number].busy.middle / usual.seconds);
      }
    }
    all.push_back(std::max(1.0, median(std::move(of_others))));
  }
  return all;
}

SlowRanks::Change SlowRanks::add(const std::vector<RankRates>& ranks, const std::vector<std::string>& hosts) {
  Change change;
  if (ranks.size() < 2) {
    return change;
  }
  const Report report(ranks);
  const std::vector<double> by_usual = others_by_usual(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto number = static_cast<std::int64_t>(rank);
    Streak& streak = streaks_[number];
    Usual& usual = usual_[number];
    const std::optional<Behind> behind =
        report.behind(rank, streak.place.has_value(),
                      usual.reports >= reports_of_usual ? std::optional(usual.seconds * by_usual[rank]) : std::nullopt);
    if (!behind) {
      usual.seconds +=
          (ranks[rank].busy.high - usual.seconds) / static_cast<double>(std::min<std::int64_t>(8, ++usual.reports));
      if (!streak.place || ++streak.missed >= streak.reports) {
        if (streak.place) {
          change.ended.push_back(found_[*streak.place]);
        }
        streak = {};
      }
      continue;
    }
    streak.add(ranks[rank], behind->seconds, behind->cause, report.step());
    streak.weight += behind->weight;
    const SlowRank slow = streak.slow(number, rank < hosts.size() ? hosts[rank] : "");
    if (streak.place) {
      found_[*streak.place] = slow;
    } else if (streak.weight >= least_weight && (streak.steps >= least_steps || streak.seconds >= least_seconds)) {
      streak.place = found_.size();
      found_.push_back(slow);
      change.begun.push_back(slow);
    }
  }
  return change;
}

std::vector<SlowRank> SlowRanks::present() const {
  std::vector<SlowRank> slow;
  for (const auto& [rank, streak] : streaks_) {
    if (streak.place) {
      slow.push_back(found_[*streak.place]);
    }
  }
  return slow;
}

}  // namespace shardrun::metrics
