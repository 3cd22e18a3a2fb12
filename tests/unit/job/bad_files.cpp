#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/unit/job/support.h"

using namespace shardrun;

namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::filesystem::path> job_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> result;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".ini") {
      result.push_back(entry.path());
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

/// The message for `path`, with the folder that it lies in left out, as the .txt beside it has it.
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
  const std::vector<std::filesystem::path> files = job_files(SHARDRUN_SOURCE_DIR "/tests/unit/job/bad");
  REQUIRE(files.size() >= 50);

  for (const std::filesystem::path& file : files) {
    INFO(file.filename());
    std::filesystem::path expected = file;
    expected.replace_extension(".txt");
    CHECK(message_for(file) + "\n" == contents(expected));
  }
}
