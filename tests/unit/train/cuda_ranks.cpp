// Two ranks in this process that train on device `cuda` over a fake of CUDA: when what they ask for is looked at, and
// which step of a run is its last.

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/stop.h"
#include "core/device/cuda/emulated/emulator.h"
#include "core/metrics/locked_run_folder.h"
#include "core/partition/agreements.h"
#include "core/run/rank_process.h"
#include "core/train/training.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/cuda/fake_cuda.h"
#include "tests/unit/launch/store.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

constexpr std::array<std::string_view, 2> transports = {"shm", "tcp"};

std::vector<std::string> two_ranks(std::string_view transport, const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings = {"job.ranks=2", "job.strategy=dp", "job.device=cuda", "train.eval_every=0",
                                       "job.transport=" + std::string(transport)};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// The context of one of two ranks on this machine.
launch::RankContext context_of(const Store& store, int rank) {
  launch::RankContext context = store.context(rank);
  context.local_rank = rank;
  context.local_world_size = 2;
  return context;
}

compile::Compiled compile_rank(const job::Job& job, int rank) {
  compile::Compiled compiled = compile::compile(job, rank);
  compiled.dataset->load();
  return compiled;
}

/// Calls `rank(number)` for both ranks at the same time.
template <typename Rank>
auto both(const Rank& rank) {
  auto second = std::async(std::launch::async, [&] { return rank(1); });
  const auto of_first = rank(0);
  return std::array{of_first, second.get()};
}

/// The loss of each step, and the loss that the device had brought to the host when the rank was asked whether it wants
/// to stop after that step.
struct Steps {
  std::vector<float> losses;
  std::vector<float> when_asked;
};

thread_local std::int64_t own_kernels = 0;  ///< the kernels that this thread has launched

/// Trains as a run does: each step is begun before the one before is ended. `after(step)` is called between steps.
template <typename After>
Steps train_late(const job::Job& job, launch::Rank& rank, std::int64_t steps, const After& after) {
  Steps found;
  found.losses.reserve(static_cast<std::size_t>(steps));
  found.when_asked.reserve(static_cast<std::size_t>(steps));
  train::Training* running = nullptr;
  compile::Compiled compiled = compile_rank(job, rank.rank());
  train::RankLink link(job, compiled, &rank, [&] {
    float loss = 0;
    std::memcpy(&loss, running->executor().kept(found.when_asked.size() % 2).data(), sizeof(loss));
    found.when_asked.push_back(loss);
    return 0;
  });
  train::Training training(job, compiled);
  running = &training;
  link.connect(training.executor());
  training.initialize();
  training.begin_at({});
  const auto end = [&](std::int64_t step) {
    found.losses.push_back(static_cast<float>(training.end_step(step).loss));
    static_cast<void>(link.end_agreement(step));
  };
  for (std::int64_t step = 0; step < steps; ++step) {
    training.begin_step(step);
    link.begin_agreement(step, {});
    if (step > 0) {
      end(step - 1);
    }
    after(step);
  }
  end(steps - 1);
  link.barrier();
  return found;
}

/// The number of transfers of a step and of the agreement after it.
std::int64_t transfers_of_step(const job::Job& job) {
  const partition::Programs programs = compile::compile(job).programs;
  std::size_t all = programs.find(partition::agreement_function, 0).transfers.size();
  for (const partition::Program& program : programs.programs) {
    const bool is_of_step = program.role == graph::Role::repeated || program.role == graph::Role::once;
    all += is_of_step ? program.transfers.size() : 0;
  }
  return static_cast<std::int64_t>(all);
}

/// The two ranks of a job, and the store where they meet.
struct TwoRanks {
  explicit TwoRanks(std::string_view transport) : job(text_job_in(folder, two_ranks(transport))) {
    for (int r = 0; r < 2; ++r) {
      ranks[r] = std::make_unique<launch::Rank>(context_of(store, r), Store::job, launch::Rank::no_deadline);
    }
  }

  TemporaryFolder folder;
  job::Job job;
  Store store{2};
  std::array<std::unique_ptr<launch::Rank>, 2> ranks;
};

}  // namespace

TEST_CASE("a rank on a GPU is asked whether to stop after the GPU has done the step", "[train][cuda]") {
  for (const std::string_view transport : transports) {
    INFO(transport);
    const TwoRanks two(transport);

    const std::array<Steps, 2> found =
        both([&](int rank) { return train_late(two.job, *two.ranks[rank], 6, [](std::int64_t) {}); });

    for (const Steps& each : found) {
      CHECK(each.losses.size() == 6);
      CHECK(each.when_asked == each.losses);
    }
    CHECK(found[0].losses.front() != found[0].losses.back());
  }
}

TEST_CASE("a step with staged transfers allocates nothing in the rank's thread", "[train][cuda]") {
  constexpr std::int64_t of_emulator = 2;  // allocations for the arguments of each kernel that is launched
  constexpr std::int64_t first = 6;
  constexpr std::int64_t last = 11;
  device::cuda::emulated::set_enqueue([](void* stream, const void* kernel, std::function<void()> work) {
    ++own_kernels;
    fake_cuda::enqueue(stream, kernel, std::move(work));
  });
  for (const std::string_view transport : transports) {
    INFO(transport);
    const TwoRanks two(transport);
    REQUIRE(transfers_of_step(two.job) > 1);

    const auto more = both([&](int rank) {
      std::int64_t allocated = 0;
      std::int64_t launched = 0;
      static_cast<void>(train_late(two.job, *two.ranks[rank], 13, [&](std::int64_t step) {
        if (step == first || step == last) {
          const std::int64_t sign = step == first ? -1 : 1;
          allocated += sign * static_cast<std::int64_t>(own_allocations());
          launched += sign * own_kernels;
        }
      }));
      return std::pair{allocated, launched};
    });

    for (const auto& [allocated, launched] : more) {
      CHECK(launched > 0);
      CHECK(allocated == of_emulator * launched);
    }
  }
  device::cuda::emulated::set_enqueue(fake_cuda::enqueue);
}

TEST_CASE("if a rank on a GPU is asked to stop within a step, all ranks do one step more", "[train][cuda]") {
  constexpr std::int64_t within = 5;  // the step, counted from 0
  for (const int asked : {0, 1}) {
    INFO(asked);
    const TemporaryFolder folder;
    const job::Job job = text_job_in(folder, two_ranks("shm", {"train.steps=1000", "train.schedule=constant"}));
    Store store(2, {.job = job::canonical_text(job)});
    const metrics::LockedRunFolder directory(job.output);
    // A rank is asked after each step, as an earlier case checks.
    const auto run = [&](int rank) {
      std::atomic<std::int64_t> steps_done = 0;
      return run::run_as_rank(job, context_of(store, rank), false,
                              {.folder = directory.root(), .compiled = compile_rank(job, rank), .stop_signal = [&] {
                                 return rank == asked && steps_done++ >= within ? SIGTERM : 0;
                               }});
    };

    const std::array<int, 2> codes = both(run);
    forget_stop();

    CHECK(codes == std::array{128 + SIGTERM, 128 + SIGTERM});
    const std::string metrics = read_file(job.output / "metrics.jsonl");
    CHECK(std::ranges::count(metrics, '\n') == within + 2);
  }
}
