#include "core/train/rank_link.h"

#include <future>
#include <mutex>
#include <optional>

#include "core/base/stop.h"
#include "core/metrics/locked_run_folder.h"
#include "core/run/rank_process.h"
#include "core/run/rank_reports.h"
#include "core/train/rank_task.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"
#include "tests/unit/launch/store.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

using Catch::Matchers::Contains;
using launch::Rank;

Rank::Deadline in(int milliseconds) { return Rank::Clock::now() + std::chrono::milliseconds(milliseconds); }

/// Two ranks of one job in this process. [job] timeout passes many times before rank 0 does anything.
struct Pair {
  TemporaryFolder folder;
  job::Job job = text_job_in(folder);
  compile::Compiled compiled = compile_ready(job);
  Store store{2};
  Rank first{store.context(0), Store::job, Rank::no_deadline};
  Rank second{store.context(1), Store::job, Rank::no_deadline};

  Pair() { job.timeout = 0.01; }

  /// What `act` throws on rank 1 if rank 0 comes late.
  template <typename Act>
  std::string outcome(const Act& act) {
    train::RankLink late(job, compiled, &first);
    std::future<std::string> waiting = std::async(std::launch::async, [&] {
      train::RankLink link(job, compiled, &second);
      return error_of([&] { act(link); });
    });
    (void)error_of([&] { (void)first.get("nothing", in(200)); });
    act(late);
    return waiting.get();
  }
};

/// The first of two ranks over a transport that moves nothing.
struct OverWitness {
  TemporaryFolder folder;
  job::Job job = text_job_in(folder, {"job.ranks=2", "job.strategy=dp", "job.transport=witness",
                                      "plugins.path=" SHARDRUN_PLUGINS ":" SHARDRUN_FIXTURES});
  compile::Compiled compiled = compile_ready(job);
  Store store{2};
  Rank second{store.context(1), Store::job, Rank::no_deadline};

  OverWitness() { second.set("barrier/0/1", ""); }

  /// What became of ops, groups and memory.
  std::string end() { return second.get("witness", in(60'000)); }
};

}  // namespace

TEST_CASE("registered memory outlives its executor until the transports are closed", "[train]") {
  OverWitness over;
  Rank first(over.store.context(0), Store::job, Rank::no_deadline);
  {
    train::RankLink link(over.job, over.compiled, &first);
    runtime::Executor executor(over.compiled.programs, *over.compiled.device);
    link.connect(executor);
  }
  CHECK(over.end() == "op; group; memory; closed");
}

TEST_CASE("the launcher hears of a failure before any connection is closed", "[train]") {
  const OverWitness over;
  const std::string text = job::canonical_text(over.job);
  std::mutex mutex;
  std::weak_ptr<const device::Memory> memory;
  std::optional<bool> was_connected;
  Store store(2, {.job = text}, [&] {
    const std::lock_guard lock(mutex);
    was_connected = !memory.expired();
  });
  Rank second(store.context(1), text, Rank::no_deadline);
  second.set("barrier/0/1", "");

  const metrics::LockedRunFolder directory(over.job.output);
  const auto work = [&](compile::Compiled& compiled, train::RankLink& link, const metrics::RunFolder&) -> int {
    runtime::Executor executor(compiled.programs, *compiled.device);
    link.connect(executor);
    const std::lock_guard lock(mutex);
    memory = executor.arena();
    throw Error(ErrorCode::numerics, "the loss is NaN");
  };

  const int code = run::as_rank(over.job, store.context(0), work, {.folder = directory.root()});
  forget_stop();

  store.end();
  CHECK(code == 1);
  CHECK(was_connected == true);
  CHECK(memory.expired());
}

TEST_CASE("a rank whose data differs from the first's is told so, with sizes and hashes of both files", "[train]") {
  Pair pair;
  job::Job other = pair.job;
  other.data.text = pair.folder / "other.txt";
  std::string text = read_file(pair.job.data.text);
  train::RankLink first(pair.job, pair.compiled, &pair.first);
  first.check_data();
  const auto told = [&] {
    write_file(other.data.text, text);
    compile::Compiled compiled = compile_ready(other);
    train::RankLink link(other, compiled, &pair.second);
    return error_of([&] { link.check_data(); });
  };
  CHECK(told() == "nothing");
  text[text.size() / 2] ^= 1;
  CHECK_THAT(told(), Contains("[data] " + other.data.text.string() + ": rank 1 has another file here (") &&
                         Contains(") than rank 0 (") && Contains("give all hosts the same data"));
}

TEST_CASE("a rank with another saved state than the first is refused", "[train]") {
  Pair pair;
  pair.job.task = job::Task::iterate;
  pair.job.iterate.from = "state.safetensors";
  pair.compiled.dataset = nullptr;
  pair.compiled.saved_state = {.fingerprint = "8 bytes, hash 1", .steps = 3};
  train::RankLink first(pair.job, pair.compiled, &pair.first);
  first.check_data();
  train::RankLink same(pair.job, pair.compiled, &pair.second);
  CHECK(error_of([&] { same.check_data(); }) == "nothing");
  pair.compiled.saved_state.fingerprint = "8 bytes, hash 2";
  CHECK_THAT(error_of([&] { same.check_data(); }),
             Contains("[iterate] from state.safetensors: rank 1 has another file here (8 bytes, hash 2) than rank 0 "
                      "(8 bytes, hash 1)"));
}

TEST_CASE("a rank whose data takes longer to read than the timeout is waited for", "[train]") {
  CHECK(Pair().outcome([](train::RankLink& link) { link.check_plan(); }) == "nothing");
}

TEST_CASE("a barrier waits for every rank, without a deadline", "[train]") {
  CHECK(Pair().outcome([](train::RankLink& link) {
    link.barrier();
    link.barrier();
  }) == "nothing");
}

TEST_CASE("a wait for other ranks ends when the job is aborted", "[train]") {
  Pair pair;
  pair.store.abort("rank 0 is gone");
  train::RankLink link(pair.job, pair.compiled, &pair.second);
  CHECK(error_of([&] { link.barrier(); }).find("the job is aborted: rank 0 is gone") != std::string::npos);
}

TEST_CASE("a rank that never learns the run's folder writes no log", "[train]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder, {"job.ranks=2", "job.strategy=dp", "job.output={time}"});
  const std::string text = job::canonical_text(job);
  Store store(2, {.job = text});
  Rank first(store.context(0), text, Rank::no_deadline);
  first.set("run", "1");
  first.set("machines", "1 1");
  launch::RankContext context = store.context(1);
  context.is_hosted = true;

  const int code =
      run::as_rank(job, context, [](compile::Compiled&, train::RankLink&, const metrics::RunFolder&) { return 0; },
                   {.on_join = [&] { store.abort("rank 0 is gone"); }});
  forget_stop();

  CHECK(code == 1);
  CHECK_FALSE(std::filesystem::exists(folder / "{time}"));
}

TEST_CASE("a rank reports the rank it waited for if its failure follows from another's", "[train]") {
  const auto told = [](const Error& error) {
    std::optional<int> told_of;
    CHECK(run::exit_code_of(
              [&]() -> int { throw error; },
              [&](launch::FailureKind, const std::string&, std::optional<int> awaited) { told_of = awaited; }) == 1);
    return told_of;
  };
  CHECK(told({ErrorCode::timeout, "past its deadline", 3}) == 3);
  CHECK(told({ErrorCode::peer_lost, "it is gone", 0}) == 0);
  CHECK_FALSE(told({ErrorCode::timeout, "waiting for member 1 (rank 3)"}));
  CHECK_FALSE(told({ErrorCode::numerics, "NaN", 3}));
}

TEST_CASE("a failed transfer names the step that started it, not the step that noticed", "[train]") {
  const auto told = [](std::optional<std::int64_t> started) {
    return error_of([&] {
      train::naming_step(7,
                         [&] { throw runtime::TransferError(Error(ErrorCode::peer_lost, "rank 1 is gone"), started); });
    });
  };
  CHECK_THAT(told(6), Contains("step 7: rank 1 is gone"));
  CHECK_THAT(told(std::nullopt), Contains("step 8: rank 1 is gone"));
}

TEST_CASE("a rank reports whether its failure would repeat", "[train]") {
  const auto kind_of = [](shardrun::ErrorCode code) {
    shardrun::launch::FailureKind kind = {};
    static_cast<void>(run::exit_code_of([&]() -> int { throw Error(code, ""); },
                                        [&](auto told, const auto&, const auto&) { kind = told; }));
    return kind;
  };
  using shardrun::launch::FailureKind;
  for (const ErrorCode code : {ErrorCode::usage, ErrorCode::job, ErrorCode::data, ErrorCode::numerics}) {
    CHECK(kind_of(code) == FailureKind::permanent);
  }
  for (const ErrorCode code : {ErrorCode::io, ErrorCode::transport, ErrorCode::plugin, ErrorCode::internal}) {
    CHECK(kind_of(code) == FailureKind::own);
  }
  for (const ErrorCode code : {ErrorCode::timeout, ErrorCode::peer_lost, ErrorCode::aborted}) {
    CHECK(kind_of(code) == FailureKind::consequence);
  }
}

TEST_CASE("results longer than a message arrive whole", "[train]") {
  Pair pair;
  train::RankLink link(pair.job, pair.compiled, &pair.first);
  const std::string sample = sentences(3'000'001);

  run::display_of_launcher(link)->result(sample);

  pair.first.goodbye(Rank::no_deadline);
  pair.store.end();
  CHECK(pair.store.messages() == sample);
}

TEST_CASE("a report has the slowest link to a rank and the sum of the others, without those that brought nothing",
          "[train]") {
  metrics::RankRates rates;
  // Nothing came from rank 0, no bytes from rank 1, and the numbers of rank 2 fell.
  train::set_links(rates, {{}, {5, 5}, {9, 9}, {0, 0}, {1000, 1000}, {0, 0}},
                   {{}, {5, 50}, {8, 8}, {4000, 1000}, {2000, 2000}, {2000, 1000}});

  CHECK(rates.slowest.from == 4);
  CHECK(rates.slowest.bytes == 1000);
  CHECK(rates.slowest.seconds == Approx(1e-6));
  CHECK(rates.others.bytes == 6000);
  CHECK(rates.others.seconds == Approx(2e-6));

  train::set_links(rates, {}, {{}, {5, 0}, {0, 5}});
  CHECK(rates.slowest.from == -1);
  CHECK(rates.others.seconds == 0);
}
