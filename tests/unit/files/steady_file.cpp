#include "core/files/steady_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <set>
#include <vector>

#include "core/base/stop.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using shardrun::files::SteadyFile;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

void put(const std::filesystem::path& path, std::uintmax_t at, char byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

std::string fingerprint(const std::filesystem::path& path) { return SteadyFile(path).fingerprint(); }

std::string complaint(const SteadyFile& file) {
  return error_of([&] { file.require_unchanged(); });
}

std::string read_all(const SteadyFile& file) {
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// Gives a file back the times of last access and of last change that it had before.
void set_times_back(const std::filesystem::path& path, const SteadyFile& file) {
  const std::int64_t time = file.stamp().modified;
  const timespec at = {.tv_sec = time / 1'000'000'000, .tv_nsec = time % 1'000'000'000};
  const std::array<timespec, 2> times = {at, at};
  REQUIRE(utimensat(AT_FDCWD, path.c_str(), times.data(), 0) == 0);
}

}  // namespace

TEST_CASE("files that differ in a byte, a size or the order of their pages have different fingerprints", "[data]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "file";
  const std::string a(4096, 'a');
  const std::string b(4096, 'b');
  std::set<std::string> seen;
  for (const std::string& text :
       {std::string(), std::string("a"), std::string("b"), std::string("aa"), a + b, b + a, a + a, a + a + "a"}) {
    write_file(path, text);
    CHECK(seen.insert(fingerprint(path)).second);
    CHECK(fingerprint(path).starts_with(std::to_string(text.size()) + " bytes, hash "));
  }
}

TEST_CASE("the fingerprint of a large file covers its size, first page and last page", "[data]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "file";
  constexpr std::uintmax_t bytes = (std::uintmax_t{64} << 20U) + 3 * 4096 + 5;
  write_file(path, "");
  std::filesystem::resize_file(path, bytes);
  std::set<std::string> seen = {fingerprint(path)};
  CHECK(seen.contains(fingerprint(path)));
  put(path, 7, 'x');
  CHECK(seen.insert(fingerprint(path)).second);
  put(path, bytes - 1, 'x');
  CHECK(seen.insert(fingerprint(path)).second);
  std::filesystem::resize_file(path, bytes - 1);
  CHECK(seen.insert(fingerprint(path)).second);
}

TEST_CASE("writing to a file, lengthening it or cutting it short is reported", "[files]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "file";
  const auto open = [&] {
    write_file(path, "hundred!");
    return SteadyFile(path);
  };
  const SteadyFile written = open();
  CHECK(complaint(written) == "nothing");
  put(path, 3, 'x');
  CHECK_THAT(complaint(written), Contains("file' changed while this job was using it: its time of last modification is 2"));

  const SteadyFile longer = open();
  std::filesystem::resize_file(path, 9);
  CHECK_THAT(complaint(longer), Contains("it had 8 bytes and has 9 now"));
  CHECK(read_all(longer) == "hundred!");

  const SteadyFile shorter = open();
  std::filesystem::resize_file(path, 5);
  CHECK_THAT(complaint(shorter), Contains("it had 8 bytes and has 5 now"));
  CHECK_THAT(error_of([&] { (void)read_all(shorter); }),
             Contains("was cut short while this job was using it: it had 8 bytes and has 5 now"));
}

TEST_CASE("a write right after opening is noticed, even if the clock is coarse", "[files]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "file";
  for (int i = 0; i < 20; ++i) {
    write_file(path, "aaaa");
    const SteadyFile file(path);
    put(path, 0, 'b');
    CHECK(complaint(file) != "nothing");
  }
}

TEST_CASE("changed bytes under restored times are found if the fingerprint is known", "[files]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "file";
  write_file(path, "before");
  const SteadyFile file(path);
  (void)file.fingerprint();

  set_times_back(path, file);
  CHECK(complaint(file) == "nothing");  // its bytes are the same
  put(path, 0, 'x');
  set_times_back(path, file);
  CHECK_THAT(complaint(file), Contains("its status and its bytes were changed at 2"));
}

TEST_CASE("a file that is renamed, linked or replaced is still read as it was opened", "[files]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "file";
  write_file(path, "the first");
  const SteadyFile file(path);
  (void)file.fingerprint();

  std::filesystem::create_hard_link(path, folder / "link");
  CHECK(complaint(file) == "nothing");
  std::filesystem::rename(path, folder / "away");
  write_file(path, "the second, longer");
  CHECK(complaint(file) == "nothing");
  CHECK(read_all(file) == "the first");
}

TEST_CASE("a running step still checks a renamed file after a signal to stop", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "the first");
  const SteadyFile file(folder / "file");
  (void)file.fingerprint();
  std::filesystem::rename(folder / "file", folder / "away");

  shardrun::request_stop(SIGTERM);
  {
    const shardrun::StepsUnderWay step;
    CHECK_NOTHROW(file.require_unchanged());
  }
  CHECK_THROWS_AS(SteadyFile(folder / "away").fingerprint(), shardrun::Stopped);
  shardrun::forget_stop();
}

TEST_CASE("an inherited descriptor that belongs to another file stays open", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "mine");
  write_file(folder / "other", "not mine");
  const SteadyFile file(folder / "file");
  const SteadyFile other(folder / "other");
  const int number = fcntl(other.descriptor().get(), F_DUPFD, 100);

  CHECK_FALSE(SteadyFile::open_handle(file.handle(0, number), folder / "file"));

  CHECK(fcntl(number, F_GETFD) == 0);  // open, and without CLOEXEC
  close(number);
}

TEST_CASE("another process opens the same file by its handle, or learns that it cannot", "[files]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "file";
  write_file(path, "shared");
  const SteadyFile file(path);
  const int number = file.descriptor().get();
  const std::string handle = file.handle(getpid(), number);

  std::filesystem::rename(path, folder / "away");
  const std::optional<SteadyFile> same = SteadyFile::open_handle(handle, path);
  REQUIRE(same);
  CHECK(read_all(*same) == "shared");
  CHECK(same->fingerprint() == file.fingerprint());

  write_file(folder / "other", "shared");
  const SteadyFile other(folder / "other");
  CHECK_FALSE(SteadyFile::open_handle(file.handle(getpid(), other.descriptor().get()), path));
  CHECK_FALSE(SteadyFile::open_handle(file.handle(getpid(), 99999), path));
  CHECK_THAT(error_of([&] { (void)SteadyFile::open_handle("1.2.three", path); }), Contains("'1.2.three'"));

  const std::string inherited = file.handle(0, fcntl(number, F_DUPFD, 100));
  put(folder / "away", 0, 'S');
  CHECK_THAT(error_of([&] { (void)SteadyFile::open_handle(handle, path); }), Contains("its time of last modification is"));
  CHECK_THAT(error_of([&] { (void)SteadyFile::open_handle(inherited, path); }), Contains("its time of last modification is"));
}
