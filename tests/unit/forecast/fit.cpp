#include "core/forecast/fit.h"

#include "core/run/requirements.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

TEST_CASE("a notice says that the machine has enough memory only if that is known", "[forecast]") {
  const forecast::MemoryFit fit = {.memory = 1000, .most = 2000, .ranks = {0}, .over = 1};
  const auto first = [&](std::uint64_t available, std::int64_t ranks_here) {
    return forecast::memory_notices(fit, available, ranks_here).front();
  };
  CHECK_THAT(first(100'000, 2), EndsWith("; this machine has enough, and the run goes on"));
  CHECK_THAT(first(0, 2), !Contains("has enough") && EndsWith("; the run goes on"));
  CHECK_THAT(first(100'000, 0), !Contains("has enough") && EndsWith("; the run goes on"));
}

TEST_CASE("the memory of [cluster] is compared with the machine's share for each rank known to be here", "[forecast]") {
  const forecast::MemoryFit fit = {.memory = 1000, .most = 10};
  CHECK_THAT(forecast::memory_notices(fit, 1500, 2).at(0), EndsWith("available for each of the 2 ranks here"));
  CHECK_THAT(forecast::memory_notices(fit, 500, 0).at(0), EndsWith(" available"));
  CHECK_THAT(forecast::memory_notices(fit, 500, 1).at(0), EndsWith(" available"));
  CHECK(forecast::memory_notices(fit, 1500, 0).empty());
}

TEST_CASE("ranks that know each other are refused together if their machine has too little memory", "[forecast]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder);
  const compile::Compiled compiled = compile::compile(job);
  CHECK_NOTHROW(run::require_memory_here(job, compiled, 1));
  CHECK_THAT(error_of([&] { run::require_memory_here(job, compiled, 1'000'000'000); }),
             StartsWith("2: ") && Contains("for the 1000000000 ranks on this machine"));
}

TEST_CASE("memory for the processes themselves counts too", "[forecast]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder);
  const compile::Compiled compiled = compile::compile(job);
  CHECK_NOTHROW(run::require_runnable(job, compiled, 1, 1));
  const std::uint64_t available = memory::available_memory().value().bytes;
  const auto processes = static_cast<std::int64_t>(3 * available / memory::process_bytes());
  CHECK_THAT(error_of([&] { (void)run::require_runnable(job, compiled, 1, processes); }),
             Contains("of them for its processes themselves and "));
}

TEST_CASE("memory that is barely enough gives a notice", "[forecast]") {
  const memory::MemoryRoom room = {.bytes = 1030 << 20, .limit = 2000 << 20, .name = "a limit"};
  CHECK(
      run::narrow_notice(1000 << 20, 30 << 20, room) ==
      "the job needs 1000 MiB, 30.0 MiB of them for its processes themselves, and a limit leaves 1.01 GiB of its 1.95 "
      "GiB: that is just enough, and the kernel may end it");
  CHECK(run::narrow_notice(998 << 20, 30 << 20, room).empty());
}

namespace {

/// The job's data, whose tokens would take more memory than there is.
class HugeText final : public data::Dataset {
 public:
  explicit HugeText(std::shared_ptr<data::Dataset> text) : text_(std::move(text)) {}

  [[nodiscard]] workload::DataShape shape() const override { return text_->shape(); }
  [[nodiscard]] std::int64_t evaluation_samples() const override { return text_->evaluation_samples(); }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return text_->tokens_per_sample(); }
  void check(int) const override {}
  [[nodiscard]] std::uint64_t bytes_to_load() const override { return std::uint64_t{1} << 60U; }
  [[nodiscard]] std::string describe() const override { return ""; }
  void fill_training(std::uint64_t, std::int64_t, const device::TensorView&, const device::TensorView&) const override {
  }
  void fill_evaluation(std::int64_t, const device::TensorView&, const device::TensorView&) const override {}

 private:
  std::shared_ptr<data::Dataset> text_;
};

}  // namespace

TEST_CASE("a job whose text is too large for the machine is refused before tokens are made", "[forecast]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder);
  compile::Compiled compiled = compile::compile(job);
  compiled.dataset = std::make_shared<HugeText>(compiled.dataset);
  CHECK_THAT(error_of([&] { run::require_memory_here(job, compiled, 1); }),
             Contains("of them for its processes themselves and 1024 PiB for the tokens of its text, and "));
}
