#include "core/job/output.h"

#include <string>

#include "tests/support/temporary_folder.h"
#include "tests/unit/job/support.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// The working folder while this exists.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::filesystem::path& folder) : before_(std::filesystem::current_path()) {
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
  }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;
  ~WorkingFolder() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

job::Job with_output(const std::string& output) { return parse(minimal, {"job.output=" + output}); }

/// 22 November 2026, 14:15:03 UTC.
std::filesystem::path resolved(const job::Job& job) {
  return job::resolved_output(job, std::chrono::system_clock::from_time_t(1795356903));
}

}  // namespace

TEST_CASE("braces in the folders above what the job says are no placeholders", "[job]") {
  const TemporaryFolder folder;
  const WorkingFolder here(folder / "a{time}/b{c}");
  const std::filesystem::path working = std::filesystem::current_path();

  for (const std::string& output :
       std::vector<std::string>{"out", "./out", "../out", "x/../../out", (working / "out").string()}) {
    INFO(output);
    const job::Job job = with_output(output);
    CHECK_NOTHROW(job::check_output(job));
    CHECK_FALSE(job::has_placeholder(job));
    CHECK(resolved(job) == job.output);
  }
  CHECK_NOTHROW(job::check_output(parse(minimal)));
  CHECK_FALSE(job::has_placeholder(parse(minimal)));
}

TEST_CASE("placeholders in what the job says are filled in or refused", "[job]") {
  const TemporaryFolder folder;
  const WorkingFolder here(folder / "a{time}/b{c}");
  const std::filesystem::path working = std::filesystem::current_path();

  CHECK(job::has_placeholder(with_output("x-{time}")));
  CHECK(resolved(with_output("x-{time}")) == working / "x-20261122-141503");
  CHECK(resolved(with_output("../{time}/{time}")) == working.parent_path() / "20261122-141503/20261122-141503");
  CHECK(resolved(with_output("../../{time}/")) == folder.path() / "20261122-141503/");
  CHECK(resolved(with_output((working / "{time}").string())) == working / "20261122-141503");
  CHECK(resolved(with_output("/elsewhere/{time}")) == "/elsewhere/20261122-141503");
  CHECK_THAT(refusal(ErrorCode::job,
                     [] {
                       job::check_output(with_output("../{date}"));
                       return 0;
                     }),
             Contains("[job] output has the placeholder {date}"));
}

TEST_CASE("a placeholder behind a linked folder is found", "[job]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "real/sub");
  const WorkingFolder here(folder / "b{c}");
  std::filesystem::create_directory_symlink(folder / "real/sub", "link");

  const job::Job job = with_output("link/../{time}");

  CHECK_NOTHROW(job::check_output(job));
  CHECK(resolved(job) == std::filesystem::current_path() / "link/../20261122-141503");
}
