#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"
#include "tests/unit/job/support.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using Catch::StartsWith;

namespace {

/// The refusal of a file that cannot be read, without the path before it.
std::string reason_of(const std::filesystem::path& path) {
  const std::string message = test::refusal(ErrorCode::job, [&] { return job::read_job_file(path); });
  REQUIRE(message.find(path.string()) == 0);
  return message.substr(path.string().size());
}

}  // namespace

TEST_CASE("a line of 1 GB is refused by the size of its file", "[job]") {
  const TemporaryFolder folder;
  write_file(folder / "long.ini", "[job]\nseed = ");
  std::filesystem::resize_file(folder / "long.ini", std::uintmax_t{1} << 30U);

  CHECK(reason_of(folder / "long.ini") == ": has 1073741824 bytes; a job file has at most 1048576. Is it a data file?");
}

TEST_CASE("the largest line and file are accepted, one byte more is not", "[job]") {
  const TemporaryFolder folder;
  const std::string longest(job::max_line_bytes - 1, 'x');
  write_file(folder / "line.ini", ";" + longest + "\n");
  write_file(folder / "longer.ini", ";x" + longest + "\n");
  std::string lines;
  while (lines.size() < job::max_file_bytes) {
    lines += ";" + std::string(1022, 'x') + "\n";
  }
  write_file(folder / "file.ini", lines);
  write_file(folder / "larger.ini", lines + "\n");

  CHECK_NOTHROW(job::read_job_file(folder / "line.ini"));
  CHECK(reason_of(folder / "longer.ini") == ":1: the line has 65537 bytes; it may have at most 65536");
  REQUIRE(lines.size() == job::max_file_bytes);
  CHECK_NOTHROW(job::read_job_file(folder / "file.ini"));
  CHECK(reason_of(folder / "larger.ini") == ": has 1048577 bytes; a job file has at most 1048576. Is it a data file?");
  CHECK(test::refusal(ErrorCode::job, [&] { return job::read_job_text(lines + "\n", "x.ini"); }) ==
        "x.ini: has more than the 1048576 bytes that a job file may have. Is it a data file?");
}

TEST_CASE("a path that is not a file is refused without waiting", "[job]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "folder.ini");
  REQUIRE(::mkfifo((folder / "pipe.ini").c_str(), 0600) == 0);
  std::filesystem::create_symlink("loop.ini", folder / "loop.ini");

  CHECK(reason_of(folder / "folder.ini") == ": is a folder, not a regular file; name a job file");
  CHECK(reason_of(folder / "pipe.ini") == ": is a device, pipe or socket, not a regular file; name a job file");
  CHECK(reason_of(folder / "none.ini") ==
        ": the job file cannot be opened: No such file or directory; check its name and permissions");
  CHECK(reason_of(folder / "loop.ini").find(": the job file cannot be opened: ") == 0);
  CHECK(reason_of("/dev/null") == ": is a device, pipe or socket, not a regular file; name a job file");
}

TEST_CASE("relative paths start at the job file or the working folder, as documented", "[job]") {
  const TemporaryFolder folder;
  write_file(folder / "my.ini",
             test::minimal + "[data]\ntext = corpus.txt\n[job]\noutput = out\n[plugins]\npath = p:/q\n");
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

namespace {

job::Job job_of(const std::filesystem::path& file, const std::vector<std::string>& overrides = {}) {
  return job::parse_job(job::read_job_file(file, overrides), job_providers());
}

std::string refusal_of(const std::filesystem::path& file) {
  return refusal(ErrorCode::job, [&] { return job_of(file); });
}

}  // namespace

TEST_CASE("a file's own settings replace those that it includes, and --set replaces both", "[job]") {
  const TemporaryFolder folder;
  write_file(folder / "base.ini", minimal + "learning_rate = 0.5\nclip = 1\n[mesh]\ndata = 2\nmodel = 3\n");
  write_file(folder / "job.ini",
             "; what differs\ninclude = base.ini\n\n[job]\nranks = 12\n[train]\nclip = 2\nsteps = 20\n"
             "[mesh]\ndata = 4\n");

  const job::Job job = job_of(folder / "job.ini", {"train.steps=30"});

  CHECK(job.model.options.integer("width") == 8);
  CHECK(job.train.learning_rate == 0.5);
  CHECK(job.train.clip == 2);
  CHECK(job.train.steps == 30);
  CHECK(job.mesh == std::vector<job::MeshAxis>{{"data", 4}, {"model", 3}});
  CHECK(job.where("train", "learning_rate") == (folder / "base.ini").string() + ":6");
  CHECK(job.where("train", "clip") == (folder / "job.ini").string() + ":7");
  CHECK(job.where("train", "steps") == "--set train.steps");
  CHECK(job.name == "job");
}

TEST_CASE("included files include others, later ones replace earlier ones", "[job]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "common/deep");
  write_file(folder / "common/deep/model.ini", "[model]\nname = toy\nwidth = 8\nlayers = 3\nweights = w.bin\n");
  write_file(folder / "common/all.ini", "include = deep/model.ini\n[model]\nlayers = 4\n[train]\nsteps = 1\n");
  write_file(folder / "more.ini", "[train]\nsteps = 2\n[data]\ntext = more.txt\n");
  write_file(folder / "job.ini", "include = common/all.ini\ninclude = \"more.ini\" ; the second\n");

  const job::Job job = job_of(folder / "job.ini");

  CHECK(job.model.options.integer("layers") == 4);
  CHECK(job.train.steps == 2);
  // A relative path is relative to the folder of the file that contains it.
  CHECK(job.model.options.text("weights") == (folder / "common/deep/w.bin").string());
  CHECK(job.data.text == folder / "more.txt");
  // The canonical text needs none of these files.
  const std::string text = job::canonical_text(job);
  CHECK_THAT(text, !Contains("include"));
  CHECK(job::canonical_text(job::parse_job(job::read_job_text(text, "elsewhere.ini"), job_providers())) == text);
}

TEST_CASE("an include through a linked folder opens the file at that path", "[job]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "real/sub");
  std::filesystem::create_directory_symlink(folder / "real/sub", folder / "link");
  write_file(folder / "base.ini", "[train]\nsteps = 1\n");
  write_file(folder / "real/base.ini", "[train]\nsteps = 2\n[data]\ntext = here.txt\n");
  write_file(folder / "real/sub/job.ini", "include = ../base.ini\n[model]\nname = toy\nwidth = 8\n");

  const job::Job job = job_of(folder / "link/job.ini");

  CHECK(job.train.steps == 2);
  CHECK(std::filesystem::weakly_canonical(job.data.text) ==
        std::filesystem::weakly_canonical(folder / "real/here.txt"));
}

TEST_CASE("a file that includes itself under another name is refused", "[job]") {
  const TemporaryFolder folder;
  write_file(folder / "job.ini", "include = other.ini\n");
  const bool is_hard = GENERATE(false, true);
  if (is_hard) {
    std::filesystem::create_hard_link(folder / "job.ini", folder / "other.ini");
  } else {
    std::filesystem::create_symlink(folder / "job.ini", folder / "other.ini");
  }
  CHECK_THAT(refusal_of(folder / "job.ini"), Contains("the file includes itself: " + (folder / "job.ini").string() +
                                                      " includes " + (folder / "other.ini").string()));
}

TEST_CASE("mistakes in an included file are reported with their place there", "[job]") {
  const TemporaryFolder folder;
  write_file(folder / "base.ini", "[train]\nsteps = 1\nlr = 1\n");
  write_file(folder / "job.ini", "include = base.ini\n[model]\nname = toy\nwidth = 8\n");
  CHECK_THAT(refusal_of(folder / "job.ini"),
             StartsWith((folder / "base.ini").string() + ":3: [train] has no key 'lr'"));

  write_file(folder / "base.ini", "[train]\nsteps = 1\nsteps = 2\n");
  CHECK_THAT(refusal_of(folder / "job.ini"),
             StartsWith((folder / "base.ini").string() + ":3: key 'steps' is given twice in [train]"));

  write_file(folder / "job.ini", "\ninclude = gone.ini\n");
  CHECK_THAT(refusal_of(folder / "job.ini"),
             StartsWith((folder / "job.ini").string() + ":2: include = gone.ini: " + (folder / "gone.ini").string() +
                        ": the job file cannot be opened: No such file"));

  write_file(folder / "job.ini", "include = .\n");
  CHECK_THAT(refusal_of(folder / "job.ini"), Contains("is a folder, not a regular file"));
}

TEST_CASE("a file that includes itself is refused with the chain", "[job]") {
  const TemporaryFolder folder;
  write_file(folder / "a.ini", "include = b.ini\n");
  write_file(folder / "b.ini", "\ninclude = c.ini\n");
  write_file(folder / "c.ini", "include = ./b.ini\n");
  const std::string b = (folder / "b.ini").string();
  const std::string c = (folder / "c.ini").string();

  CHECK(refusal_of(folder / "a.ini") == c + ":1: include = ./b.ini: the file includes itself: " + b + " includes " + c +
                                            " includes " + b + "; remove one of these lines");
  CHECK_THAT(refusal_of(folder / "c.ini"), Contains("the file includes itself: " + c + " includes " + b));
}

TEST_CASE("a file may be included twice, but not more than 100 times", "[job]") {
  const TemporaryFolder folder;
  write_file(folder / "0.ini", minimal);
  for (int i = 1; i <= 20; ++i) {
    const std::string below = std::to_string(i - 1) + ".ini\n";
    write_file(folder / (std::to_string(i) + ".ini"), "include = " + below + "include = " + below);
  }
  CHECK(job_of(folder / "3.ini").train.steps == 10);
  CHECK_THAT(refusal_of(folder / "20.ini"), Contains("more than 100 files are included"));
}

TEST_CASE("include stands before the first section", "[job]") {
  CHECK(refusal("[job]\ninclude = base.ini\n") ==
        "toy.ini:2: include stands within [job]; put it at the top of the file, before the first section");
  CHECK_THAT(refusal("includes = base.ini\n"), Contains("where only include may"));
}
