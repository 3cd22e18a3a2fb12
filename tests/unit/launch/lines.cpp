#include "core/launch/lines.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using shardrun::launch::LineSplitter;

namespace {

std::vector<std::string> split(const std::vector<std::string>& chunks) {
  std::vector<std::string> lines;
  LineSplitter splitter([&](std::string_view line) { lines.emplace_back(line); });
  for (const std::string& chunk : chunks) {
    splitter.add(chunk);
  }
  splitter.end();
  return lines;
}

}  // namespace

TEST_CASE("lines come whole however their bytes arrive", "[launch]") {
  const std::vector<std::string> lines = {"one", "", "three"};
  CHECK(split({"one\n\nthree\n"}) == lines);
  CHECK(split({"o", "ne", "\n", "\n", "thr", "ee"}) == lines);
  CHECK(split({"one\n", "", "\nthree"}) == lines);
  CHECK(split({}).empty());
}

TEST_CASE("an endless line comes in pieces of 64 KiB", "[launch]") {
  const std::string full(LineSplitter::max_line_bytes, 'x');
  CHECK(split({full + full + "yz"}) == std::vector<std::string>{full, full, "yz"});
  CHECK(split({full, "\n", "next\n"}) == std::vector<std::string>{full, "next"});
}
