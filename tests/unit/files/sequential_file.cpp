#include "core/files/sequential_file.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

TEST_CASE("a file has the bytes in order, however they are split, and the hash of them", "[files]") {
  constexpr std::size_t page = files::SequentialFile::alignment;
  constexpr std::size_t most = 9U << 20U;
  const std::unique_ptr<std::byte[]> memory = std::make_unique<std::byte[]>(most + page);
  for (std::size_t i = 0; i < most + page; ++i) {
    memory[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
  const std::size_t aligned = (page - address % page) % page;
  const TemporaryFolder folder;
  int number = 0;
  for (const std::size_t shift : {aligned, (aligned + 3) % page}) {
    for (const std::vector<std::size_t>& lengths : std::vector<std::vector<std::size_t>>{
             {}, {1}, {page}, {page - 1, 1, page}, {most - page}, {5U << 20U, 7, (2U << 20U) + page, 3}}) {
      std::size_t bytes = 0;
      for (const std::size_t length : lengths) {
        bytes += length;
      }
      const std::filesystem::path path = folder / std::to_string(number++);
      files::SequentialFile file(path, bytes);
      std::size_t at = shift;
      for (const std::size_t length : lengths) {
        file.write({memory.get() + at, length});
        at += length;
      }
      const files::Hash hash = file.finish();
      const std::string expected(reinterpret_cast<const char*>(memory.get()) + shift, bytes);
      CHECK(read_file(path) == expected);
      CHECK(hash == files::hash_of(expected));
    }
  }
}

TEST_CASE("a sequential file is new, and as long as announced", "[files]") {
  const TemporaryFolder folder;
  write_file(folder / "there", "x");
  CHECK_THAT(error_of([&] { files::SequentialFile(folder / "there", 1); }), Contains("there': File exists"));
  CHECK_THAT(error_of([&] { files::SequentialFile(folder / "none" / "f", 1); }), Contains("No such file"));
  files::SequentialFile file(folder / "short", 5);
  file.write(std::as_bytes(std::span("abc", 3)));
  CHECK_THAT(error_of([&] { static_cast<void>(file.finish()); }), Contains("short' got 3 bytes of 5"));
}
