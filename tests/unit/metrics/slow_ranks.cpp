#include "core/metrics/slow_ranks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/metrics/summary.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"

using namespace shardrun::metrics;
using namespace shardrun::test;

namespace {

constexpr std::int64_t steps_of_report = 10;

/// Seconds that a rank spends on each activity in a step.
struct Step {
  double computing = 0.1;
  double input = 0;
  double late = 0;
  std::int64_t stage = 0;
  double flops = 1e9;
};

/// The ranks of a synchronous job: in each step they wait for the one that is busy or late for the longest.
class Ranks {
 public:
  explicit Ranks(std::size_t count) : rates_(count) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      hosts_.push_back(rank % 2 == 0 ? "a" : "b");
    }
  }

  /// Some steps and their report. `of`: what a rank does in a step, counted from 1.
  SlowRanks::Change report(const std::function<Step(std::size_t rank, std::int64_t step)>& of,
                           std::int64_t count = steps_of_report) {
    for (std::int64_t i = 0; i < count; ++i) {
      ++step_;
      std::vector<Step> steps;
      double longest = 0;
      double late = 0;
      for (std::size_t rank = 0; rank < rates_.size(); ++rank) {
        steps.push_back(of(rank, step_));
        longest = std::max(longest, steps.back().computing + steps.back().input);
        late = std::max(late, steps.back().late);
      }
      for (std::size_t rank = 0; rank < rates_.size(); ++rank) {
        const Step& step = steps[rank];
        const double seconds = longest + late + 0.001;
        const double waiting = seconds - step.computing - step.input;
        rates_[rank].add({.step = step_,
                          .stage = step.stage,
                          .seconds = seconds,
                          .communicating = waiting,
                          .waiting = waiting,
                          .input = step.input,
                          .late = step.late,
                          .flops = step.flops});
      }
    }
    std::vector<RankRates> taken;
    for (StepRates& each : rates_) {
      taken.push_back(rates_of(to_text(each.take())));
    }
    return slow_.add(taken, hosts_);
  }

  [[nodiscard]] const SlowRanks& slow() const { return slow_; }

 private:
  std::vector<StepRates> rates_;
  std::vector<std::string> hosts_;
  std::int64_t step_ = 0;
  SlowRanks slow_;
};

}  // namespace

TEST_CASE("a rank that computes longer is named after twenty steps, once, and its end is told once", "[metrics]") {
  Ranks ranks(4);
  const auto even = [](std::size_t, std::int64_t) { return Step{}; };
  const auto slow = [](std::size_t rank, std::int64_t) { return Step{.computing = rank == 3 ? 0.15 : 0.1}; };
  CHECK(ranks.report(even).begun.empty());
  CHECK(ranks.report(slow).begun.empty());
  const SlowRanks::Change begun = ranks.report(slow);

  REQUIRE(begun.begun.size() == 1);
  CHECK(line_of_begin(begun.begun[0]) ==
        "rank 3 (host b) holds up the others since step 11: 50.0 ms a step (33 %), in computing");
  CHECK(ranks.slow().present().size() == 1);
  CHECK(ranks.report(slow).begun.empty());
  CHECK(ranks.report(even).ended.empty());
  const SlowRanks::Change ended = ranks.report(even);
  REQUIRE(ended.ended.size() == 1);
  CHECK(line_of_end(ended.ended[0]) == "rank 3 (host b) has not held up the others since step 41");
  CHECK(ranks.slow().present().empty());
  REQUIRE(ranks.slow().found().size() == 1);
  CHECK(text_of(ranks.slow().found()) ==
        "rank 3 (host b) held up the others in steps 11 to 40 (50.0 ms a step, in computing)");

  Summary summary;
  summary.slow_ranks = ranks.slow().found();
  CHECK_THAT(to_json(summary), Catch::Matchers::Contains("\"cause\": \"compute\"") &&
                                   Catch::Matchers::Contains("\"first_step\": 11") &&
                                   Catch::Matchers::Contains("\"last_step\": 40"));
  CHECK_THAT(to_json(summary.slow_ranks), Catch::Matchers::StartsWith(R"([{"rank":3,"host":"b","cause":"compute",)"));
  CHECK_THAT(to_json(Summary{}), !Catch::Matchers::Contains("slow_ranks"));
}

TEST_CASE("a rank that reads its samples for longer is slow in its input", "[metrics]") {
  Ranks ranks(2);
  const auto slow = [](std::size_t rank, std::int64_t) { return Step{.input = rank == 1 ? 0.04 : 0.001}; };
  static_cast<void>(ranks.report(slow));
  const SlowRanks::Change change = ranks.report(slow);

  REQUIRE(change.begun.size() == 1);
  CHECK(change.begun[0].rank == 1);
  CHECK(change.begun[0].cause == SlowRank::Cause::input);
  CHECK(change.begun[0].behind_s == Approx(0.039));
}

TEST_CASE("a rank whose transfers begin late is slow in them, as far as the others wait", "[metrics]") {
  Ranks ranks(4);
  const auto slow = [](std::size_t rank, std::int64_t) { return Step{.late = rank == 2 ? 0.05 : 0.0001}; };
  static_cast<void>(ranks.report(slow));
  const SlowRanks::Change change = ranks.report(slow);

  REQUIRE(change.begun.size() == 1);
  CHECK(change.begun[0].rank == 2);
  CHECK(change.begun[0].cause == SlowRank::Cause::transfer);
  CHECK(change.begun[0].behind_s == Approx(0.05).epsilon(0.01));

  // So short that it may be the waking of a thread.
  Ranks short_steps(2);
  for (int report = 0; report < 7; ++report) {
    CHECK(short_steps
              .report([](std::size_t rank, std::int64_t) {
                return Step{.computing = 0.0001, .late = rank == 0 ? 0.0009 : 0.00001};
              })
              .begun.empty());
  }

  // The others compute meanwhile, and wait for nothing.
  Ranks hidden(2);
  for (int i = 0; i < 3; ++i) {
    std::vector<RankRates> reports;
    for (const double late : {0.05, 0.0}) {
      StepRates steps;
      for (std::int64_t step = 1; step <= steps_of_report; ++step) {
        steps.add({.step = step, .seconds = 0.1, .waiting = 0.001, .late = late});
      }
      reports.push_back(steps.take());
    }
    SlowRanks none;
    CHECK(none.add(reports, {}).begun.empty());
    CHECK(none.add(reports, {}).begun.empty());
  }
}

TEST_CASE("steps that vary, and ranks disturbed for some steps, name nobody", "[metrics]") {
  std::minstd_rand random(7);
  const auto noise = [&](double most) { return most * static_cast<double>(random() % 1000) / 1000; };
  Ranks ranks(4);
  for (int report = 0; report < 300; ++report) {
    // A rank that something disturbs for as long as it takes to make a report, and others for single steps.
    const std::size_t disturbed = random() % 8;
    const auto change = ranks.report([&](std::size_t rank, std::int64_t step) {
      const double once = (step + static_cast<std::int64_t>(rank)) % 5 == 0 ? 0.3 : 0;
      return Step{.computing = 0.1 + noise(0.1) + once + (report % 3 == 0 && rank == disturbed ? 0.1 : 0),
                  .late = noise(0.01)};
    });
    CHECK(change.begun.empty());
  }
}

TEST_CASE("where steps vary by more than what lies between the ranks, six reports in a row name one", "[metrics]") {
  Ranks ranks(2);
  for (int report = 1; report <= 7; ++report) {
    INFO(report);
    const SlowRanks::Change change = ranks.report([](std::size_t rank, std::int64_t step) {
      constexpr std::array varying = {0.0, 0.02, 0.1, 0.12};
      return Step{.computing = (rank == 1 ? 0.26 : 0.1) + varying[static_cast<std::size_t>(step % 4)]};
    });
    CHECK(change.begun.size() == (report == 6 ? 1 : 0));
  }
}

TEST_CASE("a rank that makes steps long is named after few of them", "[metrics]") {
  const auto named_after = [](double slow, std::int64_t steps_a_report) {
    Ranks ranks(3);
    static_cast<void>(ranks.report([](std::size_t, std::int64_t) { return Step{}; }));
    for (int report = 1; report <= 12; ++report) {
      const SlowRanks::Change change = ranks.report(
          [&](std::size_t rank, std::int64_t) { return Step{.computing = rank == 1 ? slow : 0.1}; }, steps_a_report);
      if (!change.begun.empty()) {
        CHECK(change.begun[0].rank == 1);
        CHECK(change.begun[0].first_step == 11);
        return report;
      }
    }
    return 0;
  };
  CHECK(named_after(2.4, 1) == 3);
  CHECK(named_after(0.6, 4) == 3);     // ten steps before five seconds
  CHECK(named_after(1.3, 4) == 2);     // five seconds before ten steps
  CHECK(named_after(0.4, 1) == 10);    // neither
  CHECK(named_after(0.118, 1) == 10);  // by less than half of a step
}

TEST_CASE("single long steps must be slow six times if others are not much faster", "[metrics]") {
  Ranks ranks(3);
  for (int report = 1; report <= 6; ++report) {
    INFO(report);
    CHECK(ranks.report([](std::size_t rank, std::int64_t) { return Step{.computing = rank == 1 ? 4.0 : 2.4}; }, 1)
              .begun.size() == (report == 6 ? 1 : 0));
  }
  Ranks disturbed(4);  // each step another rank
  for (int report = 0; report < 40; ++report) {
    CHECK(disturbed
              .report(
                  [&](std::size_t rank, std::int64_t) {
                    return Step{.computing = static_cast<int>(rank) == report / 2 % 4 ? 9.0 : 2.0};
                  },
                  1)
              .begun.empty());
  }
}

TEST_CASE("a rank is slow no more when its medians are those of its peers, as often as it took to name it",
          "[metrics]") {
  const auto run = [](const std::function<Step(std::size_t rank, std::int64_t step)>& later, int reports) {
    Ranks ranks(3);
    // Steps that vary: the rank is named after six reports.
    for (int report = 1; report <= 6; ++report) {
      static_cast<void>(ranks.report([](std::size_t rank, std::int64_t step) {
        constexpr std::array varying = {0.0, 0.02, 0.1, 0.12};
        return Step{.computing = (rank == 1 ? 0.26 : 0.1) + varying[static_cast<std::size_t>(step % 4)]};
      }));
    }
    REQUIRE(ranks.slow().present().size() == 1);
    for (int report = 1; report <= reports; ++report) {
      if (!ranks.report(later).ended.empty()) {
        return report;
      }
    }
    return 0;
  };
  CHECK(run([](std::size_t, std::int64_t) { return Step{}; }, 10) == 6);
  // In a quarter of its steps it is as fast as the others, and in most of them much slower.
  CHECK(
      run([](std::size_t rank, std::int64_t step) { return Step{.computing = rank == 1 && step % 3 != 0 ? 0.2 : 0.1}; },
          20) == 0);
  // It is fast in five reports out of six.
  CHECK(run([](std::size_t rank,
               std::int64_t step) { return Step{.computing = rank == 1 && (step - 1) / 10 % 6 == 0 ? 0.2 : 0.1}; },
            20) == 0);
}

TEST_CASE("less than a tenth of a step is no reason to name a rank", "[metrics]") {
  Ranks ranks(4);
  for (int report = 0; report < 5; ++report) {
    CHECK(ranks.report([](std::size_t rank, std::int64_t) { return Step{.computing = rank == 0 ? 0.108 : 0.1}; })
              .begun.empty());
  }
}

TEST_CASE("a rank with more operations than its peers may be busy for longer", "[metrics]") {
  const auto run = [](double flops) {
    Ranks ranks(3);  // 4 samples on 3 ranks
    std::size_t begun = 0;
    for (int report = 0; report < 4; ++report) {
      begun += ranks
                   .report([&](std::size_t rank, std::int64_t) {
                     return Step{.computing = rank == 0 ? 0.2 : 0.1, .flops = rank == 0 ? flops : 1e9};
                   })
                   .begun.size();
    }
    return begun;
  };
  CHECK(run(2e9) == 0);
  CHECK(run(1e9) == 1);
}

TEST_CASE("ranks are compared with those of their own stage", "[metrics]") {
  // Two stages of two ranks; the second has more to compute than its operations say.
  const auto run = [](double third) {
    Ranks ranks(4);
    std::vector<SlowRank> begun;
    for (int report = 0; report < 3; ++report) {
      for (const SlowRank& slow :
           ranks
               .report([&](std::size_t rank, std::int64_t) {
                 return Step{.computing = rank < 2 ? 0.05 : rank == 3 ? third : 0.1, .stage = rank < 2 ? 0 : 1};
               })
               .begun) {
        begun.push_back(slow);
      }
    }
    return begun;
  };
  CHECK(run(0.1).empty());
  const std::vector<SlowRank> slow = run(0.13);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].rank == 3);
}

TEST_CASE("a rank alone in its stage is compared with its operations and with its own past", "[metrics]") {
  const auto stages = [](double last) {
    return [last](std::size_t rank, std::int64_t) {
      const auto stage = static_cast<std::int64_t>(rank);
      return Step{.computing = rank == 3 ? last : 0.1, .stage = stage, .flops = rank == 3 ? 2e9 : 1e9};
    };
  };
  Ranks uneven(4);  // twice the operations, and three times the time
  Ranks slow(4);    // from its first step on
  Ranks slower(4);  // later
  for (int report = 0; report < 4; ++report) {
    CHECK(uneven.report(stages(0.3)).begun.empty());
    CHECK(slow.report(stages(0.5)).begun.size() == (report == 1 ? 1 : 0));
    CHECK(slower.report(stages(0.2)).begun.empty());
  }
  static_cast<void>(slower.report(stages(0.35)));
  REQUIRE(slower.report(stages(0.35)).begun.size() == 1);
  CHECK(slower.slow().found()[0].rank == 3);
  CHECK(slower.slow().found()[0].first_step == 41);
  CHECK(slower.slow().found()[0].behind_s == Approx(0.15));
}

TEST_CASE("what slows the ranks of all stages alike makes none of them slow", "[metrics]") {
  Ranks ranks(2);
  const auto stages = [](double times) {
    return [times](std::size_t rank, std::int64_t) {
      return Step{.computing = (rank == 0 ? 0.045 : 0.05) * times, .stage = static_cast<std::int64_t>(rank)};
    };
  };
  for (int report = 0; report < 5; ++report) {
    CHECK(ranks.report(stages(1)).begun.empty());
  }
  for (int report = 0; report < 10; ++report) {
    CHECK(ranks.report(stages(1.8)).begun.empty());
  }
}

TEST_CASE("several slow ranks of many are named, unless they are half of them", "[metrics]") {
  const auto run = [](std::size_t slow) {
    Ranks ranks(8);
    std::size_t begun = 0;
    for (int report = 0; report < 3; ++report) {
      begun += ranks.report([&](std::size_t rank, std::int64_t) { return Step{.computing = rank < slow ? 0.2 : 0.1}; })
                   .begun.size();
    }
    return begun;
  };
  CHECK(run(1) == 1);
  CHECK(run(3) == 3);
  CHECK(run(4) == 0);
}

namespace {

/// Reports of ranks with even steps: ten of 50 ms each, of which a rank waits for 20 ms. `change` changes the reports
/// of all ranks.
class EvenRanks {
 public:
  explicit EvenRanks(std::size_t ranks) : EvenRanks(std::vector<std::string>(ranks, "a")) {}
  explicit EvenRanks(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

  SlowRanks::Change report(const std::function<void(std::vector<RankRates>& reports)>& change) {
    step_ += steps_of_report;
    const Quartiles busy = {0.03, 0.03, 0.03};
    std::vector<RankRates> reports(hosts_.size(), {.step = step_,
                                                   .steps = steps_of_report,
                                                   .seconds = 0.5,
                                                   .waiting = 0.2,
                                                   .busy = busy,
                                                   .usual_seconds = 0.05,
                                                   .usual_waiting = 0.02});
    change(reports);
    std::vector<RankRates> told;
    for (const RankRates& each : reports) {
      told.push_back(rates_of(to_text(each)));
    }
    return slow_.add(told, hosts_);
  }
  [[nodiscard]] const SlowRanks& slow() const { return slow_; }

 private:
  std::vector<std::string> hosts_;
  std::int64_t step_ = 0;
  SlowRanks slow_;
};

}  // namespace

TEST_CASE("a rank that reads its samples for longer is named although the computing of all ranks varies", "[metrics]") {
  const auto named = [](bool in_stages) {
    EvenRanks ranks(3);
    std::size_t begun = 0;
    for (int report = 0; report < 2; ++report) {
      begun += ranks
                   .report([&](std::vector<RankRates>& reports) {
                     for (std::size_t rank = 0; rank < reports.size(); ++rank) {
                       reports[rank].stage = in_stages ? static_cast<std::int64_t>(rank) : 0;
                       reports[rank].busy = {0.02, 0.03, 0.06};
                     }
                     reports[1].input_in_step = {0.015, 0.015, 0.016};
                   })
                   .begun.size();
    }
    return begun == 1 && ranks.slow().found()[0].cause == SlowRank::Cause::input;
  };
  CHECK(named(false));
  CHECK_FALSE(named(true));  // stages read different things
}

TEST_CASE("a rank whose process is stopped again and again is named, although its usual steps are those of the others",
          "[metrics]") {
  EvenRanks ranks(3);
  const auto stopped = [](std::vector<RankRates>& reports) {
    reports[2].stops = 1;
    reports[2].stopped = 0.1;
  };
  for (int report = 1; report <= 3; ++report) {
    CHECK(ranks.report(stopped).begun.empty());
  }
  const SlowRanks::Change begun = ranks.report(stopped);

  REQUIRE(begun.begun.size() == 1);
  CHECK(line_of_begin(begun.begun[0]) ==
        "rank 2 (host a) holds up the others since step 1: 10.0 ms a step (20 %), "
        "because its process was stopped again and again");
  CHECK_THAT(to_json(ranks.slow().found()), Catch::Matchers::Contains("\"cause\":\"stopped\""));
  CHECK(ranks
            .report([&](std::vector<RankRates>& reports) {
              stopped(reports);
              for (RankRates& each : reports) {
                each.waiting = 0;
              }
            })
            .ended.empty());
  const auto even = [](std::vector<RankRates>&) {};
  std::size_t ended = 0;
  for (int report = 0; report < 5; ++report) {
    ended += ranks.report(even).ended.size();
  }
  CHECK(ended == 1);
  const std::int64_t last = ranks.slow().found()[0].last_step;
  for (int report = 0; report < 4; ++report) {
    static_cast<void>(ranks.report(stopped));
  }
  REQUIRE(ranks.slow().found().size() == 2);
  CHECK(ranks.slow().found()[1].first_step > last);

  EvenRanks late(3);  // the first stop is later than the first step of the last two seconds
  static_cast<void>(late.report(even));
  static_cast<void>(late.report(even));
  for (int report = 0; report < 3; ++report) {
    static_cast<void>(late.report([](std::vector<RankRates>& reports) {
      reports[2].stops = 2;
      reports[2].stopped = 0.2;
    }));
  }
  REQUIRE(late.slow().found().size() == 1);
  CHECK(late.slow().found()[0].first_step == 21);

  EvenRanks once(3);
  EvenRanks alike(3);
  EvenRanks unnoticed(3);
  for (int report = 1; report <= 10; ++report) {
    CHECK(once.report([&](std::vector<RankRates>& reports) {
                reports[0].stops = report == 5 ? 1 : 0;
                reports[0].stopped = report == 5 ? 2 : 0;
              })
              .begun.empty());
    CHECK(alike
              .report([](std::vector<RankRates>& reports) {
                for (RankRates& each : reports) {
                  each.stops = 2;
                  each.stopped = 0.1;
                }
              })
              .begun.empty());
    CHECK(unnoticed
              .report([&](std::vector<RankRates>& reports) {
                stopped(reports);
                reports[0].waiting = reports[1].waiting = 0.01;
              })
              .begun.empty());
  }
}

TEST_CASE("a rank that has too little of a core is slow in computing, although it seems to wait for others",
          "[metrics]") {
  struct Named {
    std::size_t after = 0;  ///< reports; 0: not named
    std::string line;
  };
  // `starved`: seconds of a step, by rank.
  const auto named = [](const std::vector<double>& starved, const std::function<void(RankRates&)>& change = {}) {
    EvenRanks ranks(starved.size());
    for (std::size_t report = 1; report <= 10; ++report) {
      const SlowRanks::Change begun = ranks.report([&](std::vector<RankRates>& reports) {
        for (std::size_t rank = 0; rank < reports.size(); ++rank) {
          reports[rank].usual_starved = starved[rank];
          reports[rank].starved_waiting = starved[rank] * 10;  // steps of a report
          const bool waits = starved[rank] < *std::ranges::max_element(starved);
          reports[rank].waiting = (waits ? 0.2 : 0) + reports[rank].starved_waiting;
          if (change) {
            change(reports[rank]);
          }
        }
      });
      if (!begun.begun.empty()) {
        CHECK(begun.begun.size() == 1);
        return Named{report, line_of_begin(begun.begun[0])};
      }
    }
    return Named{};
  };
  const Named clear = named({0.01, 0.008, 0.028, 0.012});
  CHECK(clear.after == 2);
  CHECK(clear.line == "rank 2 (host a) holds up the others since step 1: 16.0 ms a step (32 %), in computing");
  CHECK(named({0.0, 0.028}).after == 2);
  CHECK(named({0.01, 0.008, 0.018, 0.012}).after == 6);   // by more than a tenth of a step, but less than a fifth
  CHECK(named({0.016, 0.002, 0.028, 0.004}).after == 6);  // by less than lies between the others
  CHECK(named({0.01, 0.008, 0.016, 0.012}).after == 0);   // by less than a tenth
  CHECK(named({0.03, 0.03, 0.031, 0.03}).after == 0);     // a machine with more to do than cores
  CHECK(named({0.01, 0.028, 0.028, 0.012}).after == 0);   // half of the ranks
  CHECK(named({0.01, 0.008, 0.028, 0.012}, [](RankRates& rank) { rank.waiting = 0.01; }).after == 0);
  // Another rank does not wait at all, and so holds up this one, too.
  CHECK(named({0.016, 0, 0, 0}, [](RankRates& rank) { rank.waiting = rank.usual_starved > 0 ? 0.36 : 0.4; }).after ==
        2);
  CHECK(named({0.016, 0, 0, 0.001}, [](RankRates& rank) {
          rank.waiting = rank.usual_starved > 0.001 ? 0.36 : rank.usual_starved > 0 ? 0.01 : 0.4;
        }).after == 0);
  // A rank with twice the operations lacks a core for twice as long.
  const auto more = [](RankRates& rank) { rank.flops = rank.usual_starved > 0.02 ? 2e9 : 1e9; };
  CHECK(named({0.012, 0.012, 0.024, 0.012}, more).after == 0);
  CHECK(named({0.012, 0.012, 0.036, 0.012}, more).after == 2);
}

TEST_CASE("recorded times without a core name the rank whose control group had a limit, and nobody on a busy machine",
          "[metrics]") {
  // Four ranks on two busy cores. For each report: milliseconds of a step, then those in which each rank had no core.
  using Recorded = std::vector<std::array<double, 5>>;
  const auto named = [](const Recorded& recorded) {
    EvenRanks ranks(4);
    for (const std::array<double, 5>& times : recorded) {
      static_cast<void>(ranks.report([&](std::vector<RankRates>& reports) {
        for (std::size_t rank = 0; rank < reports.size(); ++rank) {
          reports[rank].seconds = times[0] * 1e-3 * static_cast<double>(reports[rank].steps);
          reports[rank].usual_seconds = times[0] * 1e-3;
          reports[rank].usual_starved = times[rank + 1] * 1e-3;
          reports[rank].starved_waiting = reports[rank].usual_starved * static_cast<double>(reports[rank].steps);
          reports[rank].waiting = std::max(0.9 * reports[rank].seconds, reports[rank].starved_waiting);
        }
      }));
    }
    std::vector<std::int64_t> all;
    for (const SlowRank& slow : ranks.slow().found()) {
      CHECK(slow.cause == SlowRank::Cause::compute);
      all.push_back(slow.rank);
    }
    return all;
  };
  const std::vector<std::int64_t> nobody;
  const std::vector<std::int64_t> rank_2 = {2};
  CHECK(named({{166, 28, 25, 122, 26}, {148, 22, 10, 95, 19}}) == rank_2);   // tp
  CHECK(named({{150, 71, 57, 133, 65}, {131, 35, 32, 130, 44}}) == rank_2);  // zero3
  const Recorded pipeline = {{120, 10, 2, 20, 12}, {64, 3, 3, 16, 7}, {68, 4, 3, 18, 5}, {65, 2, 3, 18, 3}};
  CHECK(named(pipeline) == nobody);  // a fifth of a core is almost enough for a stage that waits most of the time
  CHECK(named({{160, 122, 136, 113, 122},
               {142, 110, 112, 109, 100},
               {139, 91, 109, 102, 104},
               {187, 165, 115, 135, 154},
               {177, 137, 146, 141, 131},
               {141, 107, 107, 104, 105},
               {159, 123, 125, 140, 139}}) == nobody);  // dp beside two processes that compute
  CHECK(named({{169, 25, 31, 45, 53},
               {164, 29, 23, 27, 24},
               {160, 44, 42, 35, 40},
               {143, 33, 31, 31, 24},
               {207, 19, 67, 49, 68},
               {160, 53, 57, 25, 49}}) == nobody);  // pp, likewise
}

TEST_CASE("a link that moves far fewer bytes a second than others is named by its two ranks", "[metrics]") {
  const auto link = [](std::int64_t from, double bandwidth) {
    return RankRates::Link{.from = from, .bytes = bandwidth * 0.18, .seconds = 0.18};
  };
  const auto ring = [&](double slow) {
    return [=](std::vector<RankRates>& reports) {
      for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        const std::size_t from = (rank + reports.size() - 1) % reports.size();
        reports[rank].slowest = link(static_cast<std::int64_t>(from), rank == 2 ? slow : 1e9);
      }
    };
  };
  EvenRanks ranks(4);
  CHECK(ranks.report(ring(1e9)).begun.empty());
  CHECK(ranks.report(ring(1 << 20)).begun.empty());
  const SlowRanks::Change begun = ranks.report(ring(1 << 20));

  REQUIRE(begun.begun.size() == 1);
  CHECK(line_of_begin(begun.begun[0]) ==
        "the link between ranks 1 (host a) and 2 (host a) holds up its ranks since step "
        "11: 18.0 ms a step (36 %), at 1.00 MiB/s in place of 954 MiB/s");
  CHECK_THAT(to_json(ranks.slow().found()),
             Catch::Matchers::Contains("\"cause\":\"link\"") && Catch::Matchers::Contains("\"peer\":2"));
  CHECK(ranks.report(ring(1e9)).ended.empty());
  const SlowRanks::Change ended = ranks.report(ring(1e9));
  REQUIRE(ended.ended.size() == 1);
  CHECK(line_of_end(ended.ended[0]) ==
        "the link between ranks 1 (host a) and 2 (host a) has not held up its ranks since step 31");

  EvenRanks busy(4);     // nobody waits for it
  EvenRanks stopped(4);  // its messages took so long because a rank did not run
  EvenRanks third(4);    // a third is not far less
  for (int report = 0; report < 4; ++report) {
    CHECK(busy.report([&](std::vector<RankRates>& reports) {
                ring(1 << 20)(reports);
                for (RankRates& each : reports) {
                  each.waiting = 0.01;
                }
              })
              .begun.empty());
    CHECK(stopped
              .report([&](std::vector<RankRates>& reports) {
                ring(1 << 20)(reports);
                reports[1].stopped = 0.17;
              })
              .begun.empty());
    CHECK(third.report(ring(3e8)).begun.empty());
  }
}

TEST_CASE("links between machines are not compared with links within a machine", "[metrics]") {
  // A ring. `slow`: bytes per second from rank 1 to rank 2.
  const auto ring = [](double slow) {
    return [=](std::vector<RankRates>& reports) {
      const std::array<double, 4> from_before = {1.25e8, 3e9, slow, 3e9};
      for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        reports[rank].slowest = {
            .from = static_cast<std::int64_t>((rank + 3) % 4), .bytes = from_before[rank] * 0.18, .seconds = 0.18};
      }
    };
  };
  EvenRanks even({"a", "a", "b", "b"});
  EvenRanks one_slow({"a", "a", "b", "b"});
  for (int report = 0; report < 6; ++report) {
    static_cast<void>(even.report(ring(1.25e8)));
    static_cast<void>(one_slow.report(ring(1.25e7)));
  }
  CHECK(even.slow().found().empty());
  REQUIRE(one_slow.slow().found().size() == 1);
  CHECK(one_slow.slow().found()[0].rank == 1);
  CHECK(one_slow.slow().found()[0].peer == 2);
  CHECK(one_slow.slow().found()[0].usual_bandwidth == Approx(1.25e8));
}

TEST_CASE("a link over which no bytes came is not judged", "[metrics]") {
  EvenRanks all(3);
  EvenRanks one(3);
  for (int report = 0; report < 6; ++report) {
    static_cast<void>(all.report([](std::vector<RankRates>& reports) {
      for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        reports[rank].slowest = {.from = static_cast<std::int64_t>((rank + 1) % 3), .bytes = 0, .seconds = 0.18};
      }
    }));
    static_cast<void>(one.report([](std::vector<RankRates>& reports) {
      reports[0].slowest = {.from = 1, .bytes = 0, .seconds = 0.18};
      reports[2].slowest = {.from = 0, .bytes = 1.8e8, .seconds = 0.18};
    }));
  }
  CHECK(all.slow().found().empty());
  CHECK(one.slow().found().empty());
}

TEST_CASE("the only link is compared with its own past, and not judged while one of its ranks is slow", "[metrics]") {
  const auto only = [](double bandwidth, double busy = 0.03) {
    return [=](std::vector<RankRates>& reports) {
      reports[0].slowest = {.from = 1, .bytes = bandwidth * 0.18, .seconds = 0.18};
      reports[0].busy = {busy, busy, busy};
    };
  };
  EvenRanks slow_first(2);
  EvenRanks slower(2);
  for (int report = 0; report < 4; ++report) {
    CHECK(slow_first.report(only(1e6)).begun.empty());
    CHECK(slower.report(only(1e8)).begun.empty());
  }
  CHECK(slower.report(only(1e6)).begun.empty());
  const SlowRanks::Change change = slower.report(only(1e6));
  REQUIRE(change.begun.size() == 1);
  CHECK(change.begun[0].rank == 0);
  CHECK(change.begun[0].peer == 1);

  EvenRanks slow_rank(2);
  for (int report = 0; report < 4; ++report) {
    CHECK(slow_rank.report(only(1e8)).begun.empty());
  }
  for (int report = 0; report < 4; ++report) {
    for (const SlowRank& slow : slow_rank.report(only(1e6, 0.045)).begun) {
      CHECK(slow.cause == SlowRank::Cause::compute);
    }
  }
}

TEST_CASE("how long a rank usually has no core counts pulses in some of its steps, and not what happens once",
          "[metrics]") {
  StepRates pulses;  // in each fifth step
  StepRates once;
  StepRates few;
  for (std::int64_t step = 1; step <= 50; ++step) {
    const double pulse = step % 5 == 0 ? 0.08 : 0;
    pulses.add({.step = step, .seconds = 0.01 + pulse, .starved = pulse});
    once.add({.step = step, .seconds = step == 20 ? 0.41 : 0.02, .starved = step == 20 ? 0.4 : 0});
  }
  few.add({.step = 1, .seconds = 0.01, .starved = 0.002});
  few.add({.step = 2, .seconds = 0.01, .starved = 0.004});

  CHECK(pulses.take().usual_starved >= 0.01);
  const RankRates disturbed = once.take();
  CHECK(disturbed.starved == Approx(0.4));
  CHECK(disturbed.usual_starved == 0);
  CHECK(few.take().usual_starved == Approx(0.003));
}

TEST_CASE("a report has the sums and the quartiles of its steps, and adding a step allocates nothing", "[metrics]") {
  StepRates steps;
  const std::size_t before = allocations();
  for (std::int64_t step = 1; step <= 2000; ++step) {
    steps.add({.step = step,
               .stage = 2,
               .seconds = 2,
               .waiting = 1,
               .input = 0.5,
               .late = static_cast<double>(step % 5),
               .bytes = 10});
  }
  const RankRates taken = steps.take();
  CHECK(allocations() == before);

  CHECK(taken.step == 2000);
  CHECK(taken.steps == 2000);
  CHECK(taken.stage == 2);
  CHECK(taken.bytes == 20'000);
  CHECK(taken.computing() == 1000);
  CHECK(taken.busy.middle == 1);
  CHECK(taken.late_in_step.low == 1);
  CHECK(taken.late_in_step.middle == 2);
  CHECK(taken.late_in_step.high == 3);
  CHECK(taken.input_in_step.high == 0.5);
  CHECK(steps.steps() == 0);
}
