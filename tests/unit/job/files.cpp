#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/job/support.h"

using namespace shardrun;

namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "shardrun-job-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string refusal_of(const std::filesystem::path& path) {
  const std::string message = test::refusal(ErrorCode::job, [&] { return job::read_job_file(path); });
  REQUIRE(message.find(path.string()) == 0);
  return message.substr(path.string().size());
}

}  // namespace

TEST_CASE("a line of 1 GB is refused by the size of its file", "[job]") {
  const TemporaryFolder folder;
  write(folder / "long.ini", "[job]\nseed = ");
  std::filesystem::resize_file(folder / "long.ini", std::uintmax_t{1} << 30U);

  CHECK(refusal_of(folder / "long.ini") ==
        ": has 1073741824 bytes; a job file has at most 1048576. Is it a data file?");
}

TEST_CASE("the largest line and file are accepted, one byte more is not", "[job]") {
  const TemporaryFolder folder;
  const std::string longest(job::max_line_bytes - 1, 'x');
  write(folder / "line.ini", ";" + longest + "\n");
  write(folder / "longer.ini", ";x" + longest + "\n");
  std::string lines;
  while (lines.size() < job::max_file_bytes) {
    lines += ";" + std::string(1022, 'x') + "\n";
  }
  write(folder / "file.ini", lines);
  write(folder / "larger.ini", lines + "\n");

  CHECK_NOTHROW(job::read_job_file(folder / "line.ini"));
  CHECK(refusal_of(folder / "longer.ini") == ":1: the line has 65537 bytes; it may have at most 65536");
  REQUIRE(lines.size() == job::max_file_bytes);
  CHECK_NOTHROW(job::read_job_file(folder / "file.ini"));
  CHECK(refusal_of(folder / "larger.ini") == ": has 1048577 bytes; a job file has at most 1048576. Is it a data file?");
  CHECK(test::refusal(ErrorCode::job, [&] { return job::read_job_text(lines + "\n", "x.ini"); }) ==
        "x.ini: has more than the 1048576 bytes that a job file may have. Is it a data file?");
}

TEST_CASE("what is not a file is refused and never waited for", "[job]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "folder.ini");
  REQUIRE(::mkfifo((folder / "pipe.ini").c_str(), 0600) == 0);
  std::filesystem::create_symlink("loop.ini", folder / "loop.ini");

  CHECK(refusal_of(folder / "folder.ini") == ": is a folder, not a regular file; name a job file");
  CHECK(refusal_of(folder / "pipe.ini") == ": is a device, pipe or socket, not a regular file; name a job file");
  CHECK(refusal_of(folder / "none.ini") ==
        ": the job file cannot be opened: No such file or directory; check its name and permissions");
  CHECK(refusal_of(folder / "loop.ini").find(": the job file cannot be opened: ") == 0);
  CHECK(refusal_of("/dev/null") == ": is a device, pipe or socket, not a regular file; name a job file");
}

TEST_CASE("relative paths start where they are said to", "[job]") {
  const TemporaryFolder folder;
  write(folder / "my.ini", test::minimal + "[data]\ntext = corpus.txt\n[job]\noutput = out\n[plugins]\npath = p:/q\n");
  const std::filesystem::path here = std::filesystem::current_path();

  const job::Job job = job::parse_job(
      job::read_job_file(folder / "my.ini", std::vector<std::string>{"model.weights=w.bin"}), test::job_providers());

  CHECK(job.data.text == folder / "corpus.txt");
  CHECK(job.output == here / "out");
  CHECK(job.plugins.path == std::vector<std::filesystem::path>{folder / "p", "/q"});
  CHECK(job.model.options.text("weights") == (here / "w.bin").string());
  CHECK(job.name == "my");
}

TEST_CASE("a job file in the working directory is found by its name", "[job]") {
  const std::filesystem::path here = std::filesystem::current_path();

  const job::Job job = test::parse(test::minimal + "[data]\ntext = corpus.txt\n");

  CHECK(job.data.text == here / "corpus.txt");
  CHECK(job.output == here / "runs/toy");
}

TEST_CASE("a file whose name cannot name a folder needs an output", "[job]") {
  const auto named = [](const char* file, const std::vector<std::string>& overrides) {
    return test::parse(test::minimal, overrides, file);
  };
  CHECK(test::refusal(ErrorCode::job, [&] { return named("...ini", {}); }) ==
        "...ini: no folder of results can be named after this file; set [job] output");
  CHECK(named("...ini", {"job.output=/out"}).output == "/out");
  CHECK(test::refusal(ErrorCode::job, [&] {
          return named("a\nb.ini", {});
        }).find("a\\x0ab.ini (default): [job] output") == 0);
}
