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
/// A part of a step, such as late transfers or reading samples, counts only from so many seconds on: a transport's
/// thread takes some time to wake up, more on some cores than on others.
constexpr double least_of_part = 1e-3;
/// A rank is found after two clear reports in a row, or after six that are not clear. The reports cover ten steps or
/// five seconds. A report is clear if the numbers of the rank and of its reference lie farther apart than they vary.
constexpr std::int64_t weight_of_clear = 3;
constexpr std::int64_t weight_of_unclear = 1;
constexpr std::int64_t least_weight = 6;
constexpr std::int64_t least_steps = 10;
constexpr double least_seconds = 5;
/// The quartiles of fewer steps than this say little of how much steps vary. Such a report counts as
/// `weight_of_few` if the rank holds up the others for this share of a step or more, otherwise as unclear.
constexpr std::int64_t steps_of_quartiles = 4;
constexpr double least_share_of_few = 0.5;
constexpr std::int64_t weight_of_few = 2;

// A rank alone in its stage is slow if it is busy for more than the first factor times what its operations should take,
// or the second times what was usual in `reports_of_usual` reports or more. Ops of other stages have other speeds.
constexpr double most_of_expected = 2;
constexpr double most_of_usual = 1.5;
constexpr std::int64_t reports_of_usual = 3;

// A rank is slow because its process is stopped if that happens at least so often within so many seconds.
constexpr std::int64_t least_stops = 3;
constexpr double seconds_of_stops = 2;

// A link is slow if it moves less than the first share of the bytes per second of others, and clear below the second.
constexpr double most_of_bandwidth = 0.25;
constexpr double most_of_clear_bandwidth = 0.125;

Quartiles times(double factor, const Quartiles& quartiles) {
  return {factor * quartiles.low, factor * quartiles.middle, factor * quartiles.high};
}

double spread_of(const Quartiles& quartiles) { return quartiles.high - quartiles.low; }

/// The time with which a rank's time is compared: the longest among the other ranks. In larger groups other ranks can
/// be slow as well. There, the longest times are left out, up to almost half of the group.
Quartiles reference_among(std::vector<Quartiles> others) {
  std::ranges::sort(others, std::ranges::greater(), &Quartiles::high);
  return others[others.size() < 3 ? 0 : others.size() / 2 - 1];
}

/// The ratio of a rank's operations to another's, but at least 1; 1 if they are not known.
double ratio_of_flops(const RankRates& rank, const RankRates& other) {
  return rank.flops > 0 && other.flops > 0 ? std::max(1.0, rank.flops / other.flops) : 1;
}

/// The sums of reports, by rank.
std::vector<RankRates> sums_of(const std::deque<std::vector<RankRates>>& reports) {
  std::vector<RankRates> sums = reports.front();
  for (std::size_t report = 1; report < reports.size(); ++report) {
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      sums[rank].add(reports[report][rank]);
    }
  }
  return sums;
}

}  // namespace

/// A report of all ranks.
class SlowRanks::Report {
 public:
  /// `latest`: the reports of the last seconds, with this one. `hosts`: the name of each rank's machine.
  Report(const std::deque<std::vector<RankRates>>& latest, const std::vector<std::string>& hosts)
      : reports_(latest),
        ranks_(latest.back()),
        latest_(sums_of(latest)),
        hosts_(hosts),
        is_on_one_host_(hosts.size() < ranks_.size() ||
                        std::ranges::adjacent_find(hosts, std::ranges::not_equal_to()) == hosts.end()) {
    for (const RankRates& rank : ranks_) {
      step_ = std::max(step_, rank.usual_seconds);
    }
  }

  /// The length of a step, which is that of the rank with the longest one.
  [[nodiscard]] double step() const noexcept { return step_; }

  /// Nothing if the rank does not hold up the others. `is_found`: the rank was found to be slow, so now only its median
  /// counts. `usual`: seconds for which the rank is usually busy, if known.
  [[nodiscard]] std::optional<Behind> behind(std::size_t rank, bool is_found, std::optional<double> usual) const {
    std::optional<Behind> most;
    for (const std::optional<Behind>& each : {behind_by_input(rank, is_found), behind_by_busy(rank, is_found, usual),
                                              behind_by_late(rank, is_found), behind_by_starving(rank, is_found)}) {
      most = each && (!most || each->seconds > most->seconds) ? each : most;
    }
    const std::optional<Behind> stopped = behind_by_stops(rank, is_found);
    return stopped && (!most || 2 * stopped->seconds >= most->seconds) ? stopped : most;
  }

  /// The slowest of the links to a rank; of those between machines if there are several. Nothing if no long messages
  /// came.
  [[nodiscard]] const RankRates::Link* link_to(std::size_t rank) const {
    const RankRates::Link& link = ranks_[rank].slowest;
    const auto from = static_cast<std::size_t>(link.from);
    const bool is_known = link.bytes > 0 && link.seconds > 0 && link.from >= 0 && from < ranks_.size();
    return is_known && (is_on_one_host_ || hosts_[rank] != hosts_[from]) ? &link : nullptr;
  }

  /// Like behind(), for the link of link_to(), which must exist. `usual`: its bytes per second before, if known.
  [[nodiscard]] std::optional<Behind> behind_by_link(std::size_t rank, bool is_found,
                                                     std::optional<double> usual) const {
    const RankRates::Link& link = *link_to(rank);
    const RankRates& own = ranks_[rank];
    std::vector<double> others;
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      const RankRates::Link* const slowest = link_to(other);
      const bool is_same = other == rank || (slowest != nullptr && static_cast<std::size_t>(link.from) == other &&
                                             static_cast<std::size_t>(slowest->from) == rank);
      if (slowest != nullptr && !is_same) {
        others.push_back(slowest->bandwidth());
      }
      if (ranks_[other].others.bytes > 0 && ranks_[other].others.seconds > 0) {
        others.push_back(ranks_[other].others.bandwidth());
      }
    }
    const double reference = std::max(others.empty() ? 0 : median(std::move(others)), usual.value_or(0));
    if (reference <= 0 || link.bandwidth() > most_of_bandwidth * reference) {
      return std::nullopt;
    }
    // A message also takes longer if one of its ranks does not run meanwhile.
    const double stopped = own.stopped + ranks_[static_cast<std::size_t>(link.from)].stopped;
    const double longer = link.seconds - link.bytes / reference - stopped;
    std::vector<double> waiting;
    for (const RankRates& each : ranks_) {
      waiting.push_back(each.waiting);
    }
    const auto steps = static_cast<double>(own.steps);
    const double seconds = std::min(longer, median(std::move(waiting))) / steps;
    const double step = own.seconds / steps;
    if (seconds < (is_found ? least_share / 2 : least_share) * step) {
      return std::nullopt;
    }
    const bool is_clear = link.bandwidth() <= most_of_clear_bandwidth * reference;
    return Behind{.seconds = seconds,
                  .cause = SlowRank::Cause::link,
                  .weight = is_clear ? weight_of_clear : weight_of_few,
                  .step = step,
                  .steps = own.steps,
                  .bandwidth = link.bandwidth(),
                  .usual_bandwidth = reference};
  }

  [[nodiscard]] const RankRates& of(std::size_t rank) const { return ranks_[rank]; }
  [[nodiscard]] std::size_t ranks() const noexcept { return ranks_.size(); }

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
    const double input = own.input_in_step.middle -
                         median(others(rank, [](const RankRates& other) { return other.input_in_step.middle; }));
    return Behind{.seconds = seconds,
                  .cause = 2 * input >= seconds ? SlowRank::Cause::input : SlowRank::Cause::compute,
                  .weight = weight(apart, spread_of(own.busy) + (is_alone(rank) ? 0 : spread_of(reference))),
                  .step = step_,
                  .steps = own.steps};
  }

  /// Transfers that begin late hold up the others for at most as long as the others wait.
  [[nodiscard]] std::optional<Behind> behind_by_late(std::size_t rank, bool is_found) const {
    return behind_by_part(rank, is_found, ranks_[rank].late_in_step,
                          others(rank, [](const RankRates& other) { return other.late_in_step; }),
                          SlowRank::Cause::transfer);
  }

  /// Reading samples, too, holds up the others for at most as long as they wait. Unlike computing, it takes no longer
  /// on a machine with more to do than cores. Stages of a pipeline read different things, or nothing.
  [[nodiscard]] std::optional<Behind> behind_by_input(std::size_t rank, bool is_found) const {
    std::vector<Quartiles> inputs;
    for (std::size_t other = 0; other < ranks_.size(); ++other) {
      if (other != rank && ranks_[other].stage == ranks_[rank].stage) {
        inputs.push_back(ranks_[other].input_in_step);
      }
    }
    return inputs.empty() ? std::nullopt
                          : behind_by_part(rank, is_found, ranks_[rank].input_in_step, inputs, SlowRank::Cause::input);
  }

  /// `own`, `others_have`: the times of a part of the step.
  [[nodiscard]] std::optional<Behind> behind_by_part(std::size_t rank, bool is_found, const Quartiles& own,
                                                     const std::vector<Quartiles>& others_have,
                                                     SlowRank::Cause cause) const {
    const Quartiles reference = reference_among(others_have);
    const double apart = is_found ? own.middle - reference.middle : own.low - reference.high;
    const double waiting = median(others(rank, [](const RankRates& other) { return other.usual_waiting; }));
    if (std::min(apart, waiting) < std::max(least(is_found), least_of_part)) {
      return std::nullopt;
    }
    return Behind{.seconds = std::min(own.middle - reference.middle, waiting),
                  .cause = cause,
                  .weight = weight(apart, spread_of(own) + spread_of(reference)),
                  .step = step_,
                  .steps = ranks_[rank].steps};
  }

  /// A rank that lacks a core holds up the others for at most as long as they wait. It is compared with ranks of all
  /// stages: on a machine with more to do than cores, each rank lacks a core in proportion to its work.
  [[nodiscard]] std::optional<Behind> behind_by_starving(std::size_t rank, bool is_found) const {
    const RankRates& own = ranks_[rank];
    const std::vector<Quartiles> starved = others(rank, [&](const RankRates& other) {
      const double seconds = ratio_of_flops(own, other) * other.usual_starved;
      return Quartiles{seconds, seconds, seconds};
    });
    const double reference = reference_among(starved).middle;
    const double least_of_others = std::ranges::min_element(starved, {}, &Quartiles::middle)->middle;
    const auto steps = static_cast<double>(own.steps);
    const double step = own.seconds / steps;
    const double apart = own.usual_starved - reference;
    // The seconds of a step in which a rank waits for other ranks, and not for a core.
    const auto waiting = [&](const RankRates& other) {
      return std::max(0.0, other.waiting - other.starved_waiting) / steps;
    };
    const std::vector<double> of_others = others(rank, waiting);
    const double seconds = std::min(apart, median(of_others) - waiting(own));
    // A rank that waits while another does not is held up itself.
    const bool is_held_up = waiting(own) - *std::ranges::min_element(of_others) > seconds / 2;
    if (is_held_up || seconds < (is_found ? least_share / 2 : least_share) * step) {
      return std::nullopt;
    }
    return Behind{.seconds = seconds,
                  .cause = SlowRank::Cause::compute,
                  .weight = weight(apart, std::max(2 * least_share * step, reference - least_of_others)),
                  .step = step,
                  .steps = own.steps};
  }

  /// Stops hold up the others for at most as long as the others wait. Only what exceeds the
  /// stops of every other rank counts, because waits for a core stop all alike. How long the others wait decides only
  /// whether a rank is found.
  [[nodiscard]] std::optional<Behind> behind_by_stops(std::size_t rank, bool is_found) const {
    const RankRates& own = latest_[rank];
    if (own.stops < least_stops || own.seconds < seconds_of_stops) {
      return std::nullopt;
    }
    double most = 0;
    std::vector<double> waiting;
    for (std::size_t other = 0; other < latest_.size(); ++other) {
      if (other != rank) {
        most = std::max(most, latest_[other].stopped);
        waiting.push_back(latest_[other].waiting);
      }
    }
    const double stopped = own.stopped - most;
    const double seconds = std::min(stopped, median(std::move(waiting)));
    if (is_found ? stopped < least_share / 2 * own.seconds : seconds < least_share * own.seconds) {
      return std::nullopt;
    }
    RankRates since;  // sums since the first of the reports with a stop
    since.steps = 0;
    for (const std::vector<RankRates>& report : reports_) {
      if (since.steps > 0 || report[rank].stops > 0) {
        since.add(report[rank]);
      }
    }
    const auto steps = static_cast<double>(since.steps);
    return Behind{.seconds = seconds / steps,
                  .cause = SlowRank::Cause::stopped,
                  .weight = least_weight,
                  .step = since.seconds / steps,
                  .steps = since.steps};
  }

  const std::deque<std::vector<RankRates>>& reports_;  ///< of the last seconds
  const std::vector<RankRates>& ranks_;
  std::vector<RankRates> latest_;  ///< sums of the last seconds
  const std::vector<std::string>& hosts_;
  bool is_on_one_host_;
  double step_ = 0;
};

namespace {

const char* place_of(SlowRank::Cause cause) {
  switch (cause) {
    case SlowRank::Cause::compute: return "in computing";
    case SlowRank::Cause::transfer: return "in transfers, which its transport begins late";
    case SlowRank::Cause::input: return "in reading its input";
    case SlowRank::Cause::stopped: return "because its process was stopped again and again";
    case SlowRank::Cause::link: break;  // the other place_of() gives its rates
  }
  return "";
}

std::string place_of(const SlowRank& slow) {
  if (slow.cause != SlowRank::Cause::link) {
    return place_of(slow.cause);
  }
  const auto rate = [](double bytes) { return human_bytes(static_cast<std::uint64_t>(bytes)) + "/s"; };
  return fmt::format("at {} in place of {}", rate(slow.bandwidth), rate(slow.usual_bandwidth));
}

std::string name_of(const SlowRank& slow) {
  const auto with_host = [](std::int64_t rank, const std::string& host) {
    return host.empty() ? std::to_string(rank) : fmt::format("{} (host {})", rank, host);
  };
  return slow.cause == SlowRank::Cause::link
             ? fmt::format("the link between ranks {} and {}", with_host(slow.rank, slow.host),
                           with_host(slow.peer, slow.peer_host))
             : "rank " + with_host(slow.rank, slow.host);
}

/// Names the ranks that it holds up.
const char* others_of(const SlowRank& slow) { return slow.cause == SlowRank::Cause::link ? "its ranks" : "the others"; }

}  // namespace

const char* to_string(SlowRank::Cause cause) noexcept {
  switch (cause) {
    case SlowRank::Cause::compute: return "compute";
    case SlowRank::Cause::transfer: return "transfer";
    case SlowRank::Cause::input: return "input";
    case SlowRank::Cause::stopped: return "stopped";
    case SlowRank::Cause::link: return "link";
  }
  return "";
}

std::string line_of_begin(const SlowRank& slow) {
  return fmt::format("{} holds up {} since step {}: {} a step ({:.0f} %), {}", name_of(slow), others_of(slow),
                     slow.first_step, human_time(slow.behind_s), 100 * slow.share, place_of(slow));
}

std::string line_of_end(const SlowRank& slow) {
  return fmt::format("{} has not held up {} since step {}", name_of(slow), others_of(slow), slow.last_step + 1);
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
  return fmt::format("{} held up {} in steps {} to {} ({} a step, {}){}", name_of(worst), others_of(worst),
                     worst.first_step, worst.last_step, human_time(worst.behind_s), place_of(worst), more);
}

void SlowRanks::Streak::add(const RankRates& report, const Behind& of_report) {
  const std::int64_t known = steps == 0 ? of_report.steps : report.steps;
  first_step = steps == 0 ? report.step - known + 1 : first_step;
  last_step = report.step;
  steps += known;
  weight += of_report.weight;
  behind[of_report.cause] += of_report.seconds * static_cast<double>(known);
  seconds += of_report.step * static_cast<double>(known);
  bandwidth = of_report.bandwidth;
  usual_bandwidth = of_report.usual_bandwidth;
  reports += place ? 0 : 1;
  missed = 0;
}

SlowRank SlowRanks::Streak::slow() const {
  double all = 0;
  for (const auto& [cause, of_cause] : behind) {
    all += of_cause;
  }
  return {.cause = std::ranges::max_element(behind, {}, [](const auto& each) { return each.second; })->first,
          .first_step = first_step,
          .last_step = last_step,
          .behind_s = all / static_cast<double>(steps),
          .share = seconds > 0 ? all / seconds : 0,
          .bandwidth = bandwidth,
          .usual_bandwidth = usual_bandwidth};
}

void SlowRanks::Usual::add(double next) {
  number += (next - number) / static_cast<double>(std::min<std::int64_t>(8, ++reports));
}

std::optional<double> SlowRanks::Usual::known() const {
  return reports >= reports_of_usual ? std::optional(number) : std::nullopt;
}

std::vector<double> SlowRanks::others_by_usual(const std::vector<RankRates>& ranks) const {
  std::vector<double> all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<double> of_others;
    for (const auto& [party, usual] : usual_) {
      const auto number = static_cast<std::size_t>(party.first);
      if (party.second < 0 && number != rank && number < ranks.size() && usual.known().value_or(0) > 0) {
        of_others.push_back(ranks[number].busy.middle / usual.number);
      }
    }
    all.push_back(std::max(1.0, median(std::move(of_others))));
  }
  return all;
}

void SlowRanks::judge(const Party& party, const std::optional<Behind>& behind, const RankRates& report,
                      const std::vector<std::string>& hosts, Change& change) {
  Streak& streak = streaks_[party];
  if (!behind) {
    if (!streak.place || ++streak.missed >= streak.reports) {
      if (streak.place) {
        change.ended.push_back(found_[*streak.place]);
      }
      streak = {};
    }
    return;
  }
  streak.add(report, *behind);
  const auto host_of = [&](std::int64_t rank) {
    return rank >= 0 && static_cast<std::size_t>(rank) < hosts.size() ? hosts[static_cast<std::size_t>(rank)] : "";
  };
  SlowRank slow = streak.slow();
  slow.rank = party.first;
  slow.host = host_of(party.first);
  slow.peer = party.second;
  slow.peer_host = host_of(party.second);
  if (streak.place) {
    found_[*streak.place] = slow;
  } else if (streak.weight >= least_weight && (streak.steps >= least_steps || streak.seconds >= least_seconds)) {
    for (const SlowRank& before : found_) {
      if (before.rank == slow.rank && before.peer == slow.peer) {
        slow.first_step = std::max(slow.first_step, before.last_step + 1);
      }
    }
    streak.first_step = slow.first_step;
    streak.place = found_.size();
    found_.push_back(slow);
    change.begun.push_back(slow);
  }
}

SlowRanks::Change SlowRanks::add(const std::vector<RankRates>& ranks, const std::vector<std::string>& hosts) {
  Change change;
  if (ranks.size() < 2) {
    return change;
  }
  latest_.push_back(ranks);
  double seconds = 0;
  for (std::size_t report = latest_.size(); report-- > 0;) {
    if (latest_[report].size() != ranks.size() || seconds >= seconds_of_stops) {
      latest_.erase(latest_.begin(), latest_.begin() + static_cast<std::ptrdiff_t>(report) + 1);
      break;
    }
    seconds += latest_[report].front().seconds;
  }
  const Report report(latest_, hosts);
  const std::vector<double> by_usual = others_by_usual(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Party party = {static_cast<std::int64_t>(rank), -1};
    Usual& usual = usual_[party];
    const std::optional<double> known = usual.known();
    const std::optional<Behind> behind = report.behind(rank, streaks_[party].place.has_value(),
                                                       known ? std::optional(*known * by_usual[rank]) : std::nullopt);
    if (!behind) {
      usual.add(ranks[rank].busy.high);
    }
    judge(party, behind, ranks[rank], hosts, change);
  }
  judge_links(report, hosts, change);
  return change;
}

/// A link of a rank that is slow itself is not judged: its messages take longer, too.
void SlowRanks::judge_links(const Report& report, const std::vector<std::string>& hosts, Change& change) {
  std::map<Party, std::optional<Behind>> links;
  const auto is_slow = [&](std::int64_t rank) { return streaks_[{rank, -1}].steps > 0; };
  for (const auto& [party, streak] : streaks_) {
    if (party.second >= 0 && !is_slow(party.first) && !is_slow(party.second)) {
      links.try_emplace(party);
    }
  }
  for (std::size_t rank = 0; rank < report.ranks(); ++rank) {
    const RankRates::Link* const link = report.link_to(rank);
    const auto number = static_cast<std::int64_t>(rank);
    if (link == nullptr || is_slow(number) || is_slow(link->from)) {
      continue;
    }
    const Party party = std::minmax(number, link->from);
    Usual& usual = usual_[party];
    const std::optional<Behind> behind = report.behind_by_link(rank, streaks_[party].place.has_value(), usual.known());
    if (!behind) {
      usual.add(link->bandwidth());
    }
    std::optional<Behind>& of_link = links[party];
    if (behind && (!of_link || behind->seconds > of_link->seconds)) {  // the slower direction counts
      of_link = behind;
    }
  }
  for (const auto& [party, behind] : links) {
    judge(party, behind, report.of(static_cast<std::size_t>(party.first)), hosts, change);
  }
}

std::vector<SlowRank> SlowRanks::present() const {
  std::vector<SlowRank> slow;
  for (const auto& [party, streak] : streaks_) {
    if (streak.place) {
      slow.push_back(found_[*streak.place]);
    }
  }
  return slow;
}

}  // namespace shardrun::metrics
