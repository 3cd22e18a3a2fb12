#include "core/data/fingerprint.h"

#include <fstream>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using shardrun::data::fingerprint;
using namespace shardrun::test;

namespace {

void put(const std::filesystem::path& path, std::uintmax_t at, char byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
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

TEST_CASE("of a large file the first and the last page count, and its size", "[data]") {
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
