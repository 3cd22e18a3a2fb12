#include <fstream>
#include <string>
#include <vector>

#include "tests/support/escapes.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/job/support.h"

using namespace shardrun;

namespace {

/// The message for `path`, without the path of its folder.
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

struct BadFile {
  std::string name;
  std::string text;
  std::string message;
};

std::vector<BadFile> bad_files() {
  std::ifstream file(SHARDRUN_SOURCE_DIR "/tests/unit/job/bad.txt");
  std::string head;
  std::getline(file, head);
  std::vector<BadFile> files;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("=== ")) {
      files.push_back({.name = line.substr(4), .text = {}, .message = {}});
    } else if (line.starts_with(">>> ")) {
      REQUIRE_FALSE(files.empty());
      files.back().message += line.substr(4) + "\n";
    } else if (!files.empty()) {
      files.back().text += line + "\n";
    }
  }
  INFO(head);
  REQUIRE(head.starts_with("# " + std::to_string(files.size()) + " job files"));
  REQUIRE_FALSE(files.back().message.empty());
  return files;
}

}  // namespace

TEST_CASE("every bad job file is refused with its message", "[job]") {
  const std::vector<BadFile> files = bad_files();
  const test::TemporaryFolder folder;

  for (const BadFile& bad : files) {
    INFO(bad.name);
    const std::filesystem::path file = folder / (bad.name + ".ini");
    test::write_file(file, test::unescaped(bad.text));
    CHECK(message_for(file) + "\n" == test::unescaped(bad.message));
  }
}
