#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/metrics/rates.h"

namespace shardrun::metrics {

/// A rank for which the others waited in many steps; or two ranks, whose link was slow.
struct SlowRank {
  enum class Cause : std::uint8_t {
    compute,   ///< it computed longer than the others
    transfer,  ///< its transport began its transfers late
    input,     ///< it read its samples longer than the others
    stopped,   ///< its process did not run, again and again
    link,      ///< long messages between it and `peer` took longer than between others
  };

  std::int64_t rank = 0;
  std::string host;
  std::int64_t peer = -1;  ///< of a link, the larger number of its two ranks; otherwise -1
  std::string peer_host;
  Cause cause = Cause::compute;
  // The steps between which it held up the others.
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  double behind_s = 0;  ///< seconds per step by which it held up the others, the mean of these steps
  double share = 0;     ///< `behind_s` as a share of the step's duration
  // For a link: its bytes per second in the latest report; and the usual rate, of other links or of this link before.
  double bandwidth = 0;
  double usual_bandwidth = 0;
};

/// "compute", "transfer", "input", "stopped" or "link".
[[nodiscard]] const char* to_string(SlowRank::Cause cause) noexcept;

/// "rank 3 (host b) holds up the others since step 21: 12.0 ms a step (31 %), in computing"; "the link between ranks 1
/// (host a) and 3 (host b) holds up its ranks since step 21: 12.0 ms a step (31 %), 1.00 MiB/s in place of 90.0 MiB/s"
[[nodiscard]] std::string line_of_begin(const SlowRank& slow);
/// "rank 3 (host b) has not held up the others since step 61"
[[nodiscard]] std::string line_of_end(const SlowRank& slow);
/// For the last line of a run: "rank 3 (host b) held up the others in steps 21 to 60 (12.0 ms a step, in computing)".
/// Names the one that cost most, and counts the others. "" if there are none.
[[nodiscard]] std::string text_of(const std::vector<SlowRank>& slow_ranks);

/// Finds slow ranks in the reports of all ranks. In synchronous training the steps of all ranks last equally long, so
/// the rank that holds up the others is the one that waits least. It is compared with the other ranks of its pipeline
/// stage, whose work is the same. A rank alone in its stage is compared with the time its operations should take.
///
/// A rank counts as slow in a report if the lower quartile of its busy time exceeds the upper quartile of the others'
/// by a tenth of a step or more. It is found after two such reports in a row that cover ten steps or five seconds, or
/// after up to six if steps vary much or reports have few steps. A rank that was found has recovered after as many
/// reports in a row, with a median like the others', as it took to find it.
///
/// A rank that lacks a core computes and transfers too slowly, and seems to wait within its transfers. So a rank also
/// counts as slow if it lacked a core for longer than the others, by a tenth of a step or more.
///
/// Stops of a process are too rare for quartiles, so their sum over the last seconds counts. A link is slow in a report
/// if its long messages came at less than a quarter of the rate of others, and the ranks waited for that for a tenth of
/// a step or more. In a job on several machines, only the links between machines are compared.
class SlowRanks {
 public:
  /// What changed with a report.
  struct Change {
    std::vector<SlowRank> begun;
    std::vector<SlowRank> ended;
  };

  /// Takes the reports of all ranks about the same steps, in order. `hosts`: the name of each rank's machine.
  Change add(const std::vector<RankRates>& ranks, const std::vector<std::string>& hosts);
  /// The ranks that hold up the others now.
  [[nodiscard]] std::vector<SlowRank> present() const;
  /// All that were found, in the order in which they were found.
  [[nodiscard]] const std::vector<SlowRank>& found() const noexcept { return found_; }

 private:
  /// A rank and -1, or the two ranks of a link, the lower number first.
  using Party = std::pair<std::int64_t, std::int64_t>;
  /// By how much a rank or a link holds up the others in a report, and why.
  struct Behind {
    double seconds = 0;  ///< per step
    SlowRank::Cause cause = SlowRank::Cause::compute;
    std::int64_t weight = 0;     ///< how much the report counts; see least_weight
    double step = 0;             ///< the length of a step
    std::int64_t steps = 0;      ///< how many steps this is about, up to the report's last
    double bandwidth = 0;        ///< as in SlowRank
    double usual_bandwidth = 0;  ///< likewise
  };
  class Report;

  /// Reports in a row in which a rank or a link was slow.
  struct Streak {
    std::int64_t weight = 0;  ///< of the reports; a clear one weighs more
    std::int64_t steps = 0;
    std::int64_t first_step = 0;
    std::int64_t last_step = 0;
    std::map<SlowRank::Cause, double> behind;  ///< seconds, summed over all its steps
    double seconds = 0;                        ///< the duration of all its steps
    std::int64_t reports = 0;                  ///< how many it took to find the rank
    std::int64_t missed = 0;                   ///< reports since the last slow one
    double bandwidth = 0;                      ///< as in SlowRank
    double usual_bandwidth = 0;                ///< likewise
    std::optional<std::size_t> place;          ///< in `found_`; nothing: not found yet

    void add(const RankRates& report, const Behind& of_report);
    [[nodiscard]] SlowRank slow() const;
  };

  /// For how long a rank is busy in a step, or how many bytes a second a link moves, when it is not slow.
  struct Usual {
    double number = 0;
    std::int64_t reports = 0;

    void add(double next);
    [[nodiscard]] std::optional<double> known() const;
  };

  /// Takes note of a report about a rank or a link. `behind`: nothing if it is not slow.
  void judge(const Party& party, const std::optional<Behind>& behind, const RankRates& report,
             const std::vector<std::string>& hosts, Change& change);
  void judge_links(const Report& report, const std::vector<std::string>& hosts, Change& change);

  /// For each rank, how many times as long as usual the others are busy, at least 1. The rank's own usual time is
  /// multiplied by it, so that what slows all ranks makes none of them count as slow.
  [[nodiscard]] std::vector<double> others_by_usual(const std::vector<RankRates>& ranks) const;

  std::map<Party, Streak> streaks_;
  std::map<Party, Usual> usual_;
  std::deque<std::vector<RankRates>> latest_;  ///< reports of the last seconds
  std::vector<SlowRank> found_;
};

}  // namespace shardrun::metrics
