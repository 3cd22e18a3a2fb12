#include "core/files/scratch_folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/variable.h"

using namespace shardrun;

TEST_CASE("a scratch folder of a killed process is removed by the next one, and no other is", "[files]") {
  const test::TemporaryFolder above;
  const test::Variable variable("TMPDIR", above.path().c_str());
  const auto folders = [&] {
    return std::distance(std::filesystem::directory_iterator(above.path()), std::filesystem::directory_iterator());
  };
  {
    const files::ScratchFolder living("shardrun-scratch", "a test");
    const files::ScratchFolder other("shardrun-other", "a test");
    const pid_t child = ::fork();
    if (child == 0) {
      const files::ScratchFolder lost("shardrun-scratch", "a test");
      test::write_file(lost.path() / "file", "text");
      ::_exit(0);  // as a signal ends it: nothing is removed
    }
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    CHECK(folders() == 3);
    const files::ScratchFolder next("shardrun-scratch", "a test");
    CHECK(folders() == 3);
    CHECK(std::filesystem::exists(living.path()));
    CHECK(std::filesystem::exists(next.path()));
  }
  CHECK(folders() == 0);
}
