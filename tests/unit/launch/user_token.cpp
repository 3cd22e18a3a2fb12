#include "core/launch/world.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::launch;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using shardrun::test::error_of;
namespace fs = std::filesystem;

namespace {

/// The place of the secret, below a folder that only this test uses.
struct Place {
  shardrun::test::TemporaryFolder temporary;
  std::string root = temporary.path().string();
  fs::path folder = temporary.path() / fmt::format("shardrun-{}", ::geteuid());
  fs::path file = folder / "token";

  [[nodiscard]] Token token() const {
    return token_of_this_user(
        [this](const char* name) { return std::string_view(name) == "TMPDIR" ? root.c_str() : nullptr; });
  }

  [[nodiscard]] std::string refusal() const {
    return error_of([this] { (void)token(); });
  }
};

mode_t mode_of(const fs::path& path) {
  struct stat status = {};
  ::lstat(path.c_str(), &status);
  return status.st_mode & 07777U;
}

}  // namespace

TEST_CASE("a user's processes share one secret that nobody else can read", "[launch]") {
  const Place place;
  std::vector<std::future<Token>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(std::async(std::launch::async, [&] { return place.token(); }));
  }
  const Token first = place.token();
  for (std::future<Token>& each : all) {
    CHECK(each.get() == first);
  }
  CHECK(first != Token{});
  CHECK(mode_of(place.folder) == 0700);
  CHECK(mode_of(place.file) == 0600);
  CHECK(std::distance(fs::directory_iterator(place.folder), fs::directory_iterator()) == 1);
  CHECK(Place().token() != first);
}

TEST_CASE("a secret that others may read or choose is refused", "[launch]") {
  const Place place;
  (void)place.token();
  SECTION("a folder that others may enter") {
    ::chmod(place.folder.c_str(), 0755);
    CHECK_THAT(place.refusal(), StartsWith("2: ") && Contains("mode 0755") && Contains("set SHARDRUN_TOKEN"));
  }
  SECTION("a file that others may read") {
    ::chmod(place.file.c_str(), 0640);
    CHECK_THAT(place.refusal(), StartsWith("2: ") && Contains("mode 0640"));
  }
  SECTION("a folder that leads elsewhere") {
    fs::rename(place.folder, place.temporary.path() / "elsewhere");
    fs::create_directory_symlink(place.temporary.path() / "elsewhere", place.folder);
    CHECK_THAT(place.refusal(), StartsWith("1: cannot open"));
  }
  SECTION("a file that leads elsewhere") {
    fs::rename(place.file, place.temporary.path() / "elsewhere");
    fs::create_symlink(place.temporary.path() / "elsewhere", place.file);
    CHECK_THAT(place.refusal(), StartsWith("1: cannot open"));
  }
  SECTION("a folder of another user") {
    if (::geteuid() == 0 && ::chown(place.folder.c_str(), 65534, 65534) == 0) {
      CHECK_THAT(place.refusal(), StartsWith("2: ") && Contains("belongs to user 65534"));
    }
  }
  SECTION("a file of another size") {
    std::ofstream(place.file, std::ios::trunc) << "short";
    CHECK_THAT(place.refusal(), Contains("has 5 bytes, expected a secret of 32: remove it"));
  }
}

TEST_CASE("a secret that cannot be written leaves nothing behind", "[launch]") {
  const Place place;
  struct rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  const std::string refusal = place.refusal();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK_THAT(refusal, Contains("token"));
  CHECK(fs::is_empty(place.folder));
  CHECK(place.token() != Token{});
}
