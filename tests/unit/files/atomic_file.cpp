#include "core/files/atomic_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>

#include "core/files/folder.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::files;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// While this object exists, a write past `bytes` of a file is cut short, and the next one fails, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE("readers see nothing before the commit and everything after it", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "old");

  AtomicFile file(folder / "file");
  file.write(bytes_of("new "));
  file.write_at(4, bytes_of("bytes"));
  file.write_at(0, bytes_of("N"));
  CHECK(read_file(folder / "file") == "old");
  file.commit();

  CHECK(read_file(folder / "file") == "New bytes");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a file that is not committed leaves nothing", "[files]") {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "file");
    file.write(bytes_of("half"));
    CHECK(files_in(folder.path()) == 1);
  }
  CHECK(files_in(folder.path()) == 0);
}

TEST_CASE("a write that is cut short by the disk fails, and the old file stays", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "old");
  const std::string text(10000, 'x');
  std::string error;
  {
    const FileSizeLimit limit(4096);
    error = error_of([&] { write_file_atomically(folder / "file", text); });
  }

  CHECK_THAT(error, StartsWith("1: cannot write '") &&
                        Contains("/file': File too large; the limit of a file's size (ulimit -f) is 4096 bytes"));
  CHECK(read_file(folder / "file") == "old");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a file can be cut before it is complete", "[files]") {
  const TemporaryFolder folder;
  AtomicFile file(folder / "file");
  file.write(bytes_of("a record, half"));
  file.cut(8);
  file.commit();
  CHECK(read_file(folder / "file") == "a record");
}

TEST_CASE("bytes that the disk takes only in part are not appended", "[files]") {
  const TemporaryFolder folder;
  AtomicFile file(folder / "file");
  file.write(bytes_of("a line\n"));
  {
    const FileSizeLimit limit(4096);
    CHECK_THAT(error_of([&] { file.write(bytes_of(std::string(10000, 'x'))); }), StartsWith("1: cannot write '"));
  }

  file.commit();

  CHECK(read_file(folder / "file") == "a line\n");
}

TEST_CASE("a full device is reported with its path and advice", "[files]") {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full.is_open());

  CHECK(error_of([&] { write_all(full, bytes_of("x"), "/dev/full"); }) ==
        "1: cannot write '/dev/full': No space left on device; free some space there or choose another folder");
}

TEST_CASE("a writer that is killed leaves the old file, and the next writer clears up", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "old");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    AtomicFile file(folder / "file");
    file.write(bytes_of("a long half of a file"));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(read_file(folder / "file") == "old");
  CHECK(files_in(folder.path()) == 2);

  write_file_atomically(folder / "file", "new");

  CHECK(read_file(folder / "file") == "new");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("two writers of one path exclude each other", "[files]") {
  const TemporaryFolder folder;
  std::optional<AtomicFile> first(std::in_place, folder / "file");
  first->write(bytes_of("first"));

  CHECK_THAT(error_of([&] { AtomicFile second(folder / "file"); }), Contains("another process is writing it now"));
  first->commit();
  first.reset();

  CHECK(read_file(folder / "file") == "first");
  write_file_atomically(folder / "file", "second");
  CHECK(read_file(folder / "file") == "second");
}

TEST_CASE("a path that cannot be written is refused at once", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  std::filesystem::create_directory(folder / "folder");
  write_file(folder / "folder/within", "");

  CHECK_THAT(error_of([&] { AtomicFile(folder / "missing/file"); }), Contains("No such file or directory"));
  CHECK_THAT(error_of([&] { AtomicFile(folder / "file/file"); }), Contains("Not a directory"));
  CHECK_THAT(error_of([&] { AtomicFile(folder / "folder/"); }), Contains("it names a folder"));
  CHECK_THAT(error_of([&] { write_file_atomically(folder / "folder", "text"); }), Contains("cannot replace"));
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("a link in the temporary file's place is not followed", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "victim", "untouched");
  std::filesystem::create_symlink(folder / "victim", folder / ".file.tmp");

  CHECK_THAT(error_of([&] { write_file_atomically(folder / "file", "text"); }), Contains("cannot create"));
  CHECK(read_file(folder / "victim") == "untouched");
}

TEST_CASE("a file that has another name in the temporary file's place keeps its bytes", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "victim", "untouched");
  std::filesystem::create_hard_link(folder / "victim", folder / ".file.tmp");

  write_file_atomically(folder / "file", "text");
  CHECK(read_file(folder / "file") == "text");
  CHECK(read_file(folder / "victim") == "untouched");
}

TEST_CASE("a second writer adds its part to an unfinished file, and the commit publishes both", "[files]") {
  const TemporaryFolder folder;
  AtomicFile whole(folder / "w");
  whole.reserve(4);
  whole.write(bytes_of("ab"));
  UnfinishedFile part(folder / "w", 4);
  part.write_at(2, bytes_of("cd"));
  part.sync();
  CHECK_FALSE(std::filesystem::exists(folder / "w"));
  whole.commit();
  CHECK(read_file(folder / "w") == "abcd");
  CHECK_THAT(error_of([&] { UnfinishedFile(folder / "w", 4); }), Contains("cannot open") && Contains(".w.tmp"));
}

TEST_CASE("an unfinished file of another size than expected is refused", "[files]") {
  const TemporaryFolder folder;
  AtomicFile whole(folder / "w");
  whole.reserve(4);
  CHECK_THAT(error_of([&] { UnfinishedFile(folder / "w", 5); }),
             Contains("has 4 bytes, and this process would write 5"));
}

TEST_CASE("a file beyond the file size limit is refused before any of it is written", "[files]") {
  const TemporaryFolder folder;
  const FileSizeLimit limit(1000);
  AtomicFile file(folder / "w");
  CHECK_THAT(error_of([&] { file.reserve(1001); }),
             Contains("cannot make room for the 1001 bytes of") && Contains("File too large") &&
                 Contains("the limit of a file's size (ulimit -f) is 1000 bytes"));
}

TEST_CASE("a path is shown without detours, relative to the working folder if that is shorter", "[files]") {
  const std::filesystem::path here = std::filesystem::current_path();
  CHECK(shardrun::files::human_path(here / "a/../runs/job") == "runs/job");
  CHECK(shardrun::files::human_path("./runs/../runs/job") == "runs/job");
  CHECK(shardrun::files::human_path("/x/../y/z") == "/y/z");
  CHECK(shardrun::files::human_path(here) == ".");
}
