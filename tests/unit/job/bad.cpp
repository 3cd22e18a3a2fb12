#include <string>
#include <vector>

#include "tests/support/sections.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/job/support.h"

using namespace shardrun;

namespace {

/// The message for `path`, with the folder that it lies in left out.
std::string message_for(const std::filesystem::path& path) {
  std::string message;
  try {
    (void)job::parse_job(job::read_job_file(path), test::job_providers());
    return "accepted";
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::job);
    CHECK(exit_code(error.code()) == 2);
    message = error.message();
  }
  const std::string folder = path.parent_path().string() + "/";
  for (std::size_t at = message.find(folder); at != std::string::npos; at = message.find(folder)) {
    message.erase(at, folder.size());
  }
  return message;
}

}  // namespace

TEST_CASE("every bad job file is refused with its message", "[job]") {
  const std::vector<test::Section> cases = test::read_sections(SHARDRUN_SOURCE_DIR "/tests/unit/job/bad.txt");
  REQUIRE(cases.size() >= 112);
  const test::TemporaryFolder folder;

  for (const test::Section& bad : cases) {
    INFO(bad.name);
    std::string text;
    std::string expected;
    for (const std::string& line : bad.lines) {
      (line.starts_with(">>> ") ? expected : text) += test::unescaped(line.starts_with(">>> ") ? line.substr(4) : line);
    }
    const std::filesystem::path file = folder / (bad.name + ".ini");
    test::write_file(file, text);
    CHECK(message_for(file) + "\n" == expected);
  }
}
