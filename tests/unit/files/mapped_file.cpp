#include <sys/stat.h>

#include <utility>

#include "core/files/mapped_file.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::files;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

TEST_CASE("a mapped file is seen whole and moves", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "text", "hello");

  MappedFile first(folder / "text");
  const MappedFile second = std::move(first);

  CHECK(second.text() == "hello");
  CHECK(second.bytes().size() == 5);
  CHECK(first.bytes().empty());
}

TEST_CASE("an empty file maps to nothing", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "empty", "");

  CHECK(MappedFile(folder / "empty").bytes().empty());
}

TEST_CASE("a path that is not a regular file is refused", "[files]") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);

  CHECK_THAT(error_of([&] { MappedFile(folder / "missing"); }),
             StartsWith("2: cannot read '") && Contains("missing': No such file or directory"));
  CHECK_THAT(error_of([&] { MappedFile{folder.path()}; }), Contains("it is a folder, not a regular file"));
  CHECK_THAT(error_of([&] { MappedFile(folder / "pipe"); }), Contains("it is a device or pipe, not a regular file"));
}

TEST_CASE("a text is read whole, up to a size", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "text", "über\n");

  CHECK(read_text_file(folder / "text", 6) == "über\n");
  CHECK_THAT(error_of([&] { static_cast<void>(read_text_file(folder / "text", 5)); }),
             EndsWith("text': it has 6 bytes, expected at most 5"));
}

TEST_CASE("a file that is not text is refused, with the place", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "nul", std::string("ab\0\xff", 4));
  write_file(folder / "latin", "ab\xfc\n");

  CHECK_THAT(error_of([&] { static_cast<void>(read_text_file(folder / "nul", 9)); }),
             EndsWith("nul': it is no UTF-8 text, as byte 2 shows"));
  CHECK_THAT(error_of([&] { static_cast<void>(read_text_file(folder / "latin", 9)); }),
             EndsWith("latin': it is no UTF-8 text, as byte 2 shows"));
  CHECK_THAT(error_of([&] { static_cast<void>(read_text_file(folder / "missing", 9)); }),
             EndsWith("missing': No such file or directory"));
}
