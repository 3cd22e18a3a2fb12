#include "core/metrics/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>

#include "core/base/stop.h"
#include "core/files/atomic_file.h"
#include "core/metrics/locked_run_folder.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::metrics;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

std::string error_of_check(const RunFolder& folder) {
  return error_of([&] { folder.require_owned(); });
}

}  // namespace

TEST_CASE("a run owns its folder until it is moved, and writes to the moved folder", "[metrics]") {
  const TemporaryFolder above;
  const LockedRunFolder run(above / "run");
  CHECK(error_of_check(run.folder()) == "nothing");

  std::filesystem::rename(above / "run", above / "moved");
  const LockedRunFolder next(above / "run");
  files::write_file_atomically(weights_path(run.root()), "first");

  CHECK_THAT(error_of_check(run.folder()), StartsWith("1: the output folder '") &&
                                               Contains("was moved to '" + (above / "moved").string() + "'") &&
                                               Contains("another run (process ") && Contains("has its place"));
  CHECK(run.folder().is_owned());
  CHECK(error_of_check(next.folder()) == "nothing");
  CHECK(read_file(above / "moved/weights.safetensors") == "first");
  CHECK_FALSE(std::filesystem::exists(above / "run/weights.safetensors"));
}

TEST_CASE("a run cannot write to a folder that was removed", "[metrics]") {
  const TemporaryFolder above;
  const LockedRunFolder run(above / "run");

  std::filesystem::remove_all(above / "run");
  const LockedRunFolder next(above / "run");

  CHECK_THAT(error_of_check(run.folder()), Contains("was removed while this run wrote to it: the run has stopped"));
  CHECK_FALSE(run.folder().is_owned());
  CHECK_THAT(error_of([&] { files::write_file_atomically(weights_path(run.root()), "first"); }),
             Contains("cannot create '" + (above / "run/.weights.safetensors.tmp").string()));
  CHECK(files_in(above / "run") == 2);  // the next run's lock and the folder of its logs
}

TEST_CASE("a removed lock lets no other run in, and the owner notices", "[metrics]") {
  const TemporaryFolder above;
  const LockedRunFolder run(above / "run");

  std::filesystem::remove(above / "run/.lock");

  CHECK_THAT(error_of([&] { LockedRunFolder(above / "run"); }), StartsWith("2: another run writes to '"));
  CHECK_THAT(error_of_check(run.folder()), Contains("lost its lock (.lock) while this run wrote to it"));
}

TEST_CASE("a rank whose launcher is gone notices that another run has taken the lock", "[metrics]") {
  const TemporaryFolder above;
  std::optional<LockedRunFolder> launcher(above / "run");
  const RunFolder rank(launcher->root(), above / "run");
  CHECK(error_of_check(rank) == "nothing");
  launcher.reset();
  CHECK(error_of_check(rank) == "nothing");

  launcher.emplace(above / "run");

  CHECK_FALSE(rank.is_owned());
  CHECK_THAT(error_of_check(rank), Contains("was taken by another run (process "));
}

TEST_CASE("a folder is found by what its run wrote into the lock", "[metrics]") {
  const TemporaryFolder above;
  const LockedRunFolder run(above / "run");
  const RunFolder found = find_run_folder(above / "run", run.folder().owner());
  CHECK(found.path() == above / "run");
  CHECK(error_of_check(found) == "nothing");
}

TEST_CASE("a folder that rank 0's run does not own is refused", "[metrics]") {
  const TemporaryFolder above;
  const LockedRunFolder other(above / "run");
  const auto missed = [&](const char* name) {
    return error_of([&] {
      static_cast<void>(find_run_folder(above / name, "process 7 on node1\nrun 12\n", std::chrono::milliseconds(0)));
    });
  };
  CHECK_THAT(missed("run"), Contains("is not the one that rank 0 writes to (process 7 on node1), but that here is of "
                                     "process ") &&
                                Contains("[job] output must be a folder that all of them share"));
  CHECK_THAT(missed("none"), Contains("cannot open the folder '" + (above / "none").string() + "'"));
}

TEST_CASE("results of this run are told from earlier ones", "[metrics]") {
  const TemporaryFolder above;
  const auto saved = [](const LockedRunFolder& run) {
    return std::string(to_string(run.saved("weights.safetensors")));
  };
  {
    const LockedRunFolder run(above / "run");
    CHECK(saved(run) == "none");
    files::write_file_atomically(weights_path(run.root()), "first");
    CHECK(saved(run) == "new");
  }
  const LockedRunFolder next(above / "run");
  CHECK(saved(next) == "earlier");
  files::write_file_atomically(weights_path(next.root()), "first");
  CHECK(saved(next) == "new");
}

TEST_CASE("a path that cannot be looked at does not take the folder from its run", "[metrics]") {
  const TemporaryFolder above;
  std::filesystem::create_directory(above / "closed");
  const LockedRunFolder run(above / "closed/run");
  std::filesystem::permissions(above / "closed", std::filesystem::perms::none);
  const uid_t user = geteuid();
  constexpr uid_t nobody = 65534;
  const bool is_changed = user == 0 && seteuid(nobody) == 0;  // nothing is closed to root

  const std::string error = error_of_check(run.folder());
  const bool is_closed = faccessat(AT_FDCWD, (above / "closed/run").c_str(), F_OK, AT_EACCESS) != 0;

  if (is_changed) {
    REQUIRE(seteuid(user) == 0);
  }
  std::filesystem::permissions(above / "closed", std::filesystem::perms::owner_all);
  if (user == 0 && !is_changed) {
    WARN("skipped: root cannot become another user here");
    return;
  }
  CHECK(is_closed);
  CHECK(error == "nothing");
}

TEST_CASE("the search for a run's folder ends at a stop", "[metrics]") {
  const TemporaryFolder above;
  request_stop(SIGTERM);
  CHECK_THROWS_AS(find_run_folder(above / "run", "another", std::chrono::hours(1)), Stopped);
  forget_stop();
}
