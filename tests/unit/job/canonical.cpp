#include <string>

#include "core/job/output.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/job/support.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

const std::string rich = R"(
[train]
learning_rate = 10e-4   ; a comment
steps = 0010
[model]
tags = a\,b , c
width = 8
name = toy
note = "  # spaced "
bias = yes
[mesh]
z = 1
a = 1
[data]
text = corpus.txt
)";

}  // namespace

TEST_CASE("a job is written in the schema's order with absolute paths", "[job]") {
  const std::string here = std::filesystem::current_path().string();

  CHECK(canonical_text(parse(rich, {"train.clip=1.50", "job.seed=7"})) == "[job]\noutput = " + here +
                                                                              R"(/runs/toy
seed = 7

[mesh]
z = 1
a = 1

[model]
name = toy
width = 8
bias = true
note = "  # spaced "
tags = a\,b,c

[data]
text = )" + here + R"(/corpus.txt

[train]
steps = 10
learning_rate = 0.001
clip = 1.5
)");
}

TEST_CASE("a written job is the same job when it is read elsewhere", "[job]") {
  const job::Job first = parse(rich, {"train.clip=1.5", "plugins.path=p ; q:r\\:s", "model.weights=a #b",
                                      "cluster.measured=traced", "cluster.a.bandwidth=1e9"});
  const std::string text = canonical_text(first);

  const job::Job again = parse(text, {}, "/elsewhere/copy.ini");

  CHECK(canonical_text(again) == text);
  CHECK(again.output == first.output);
  CHECK(again.data.text == first.data.text);
  CHECK(again.plugins.path == first.plugins.path);
  CHECK(again.mesh == first.mesh);
  CHECK(again.train.clip == 1.5);
  CHECK(again.cluster.measured == first.cluster.measured);
  CHECK(again.cluster.axes.at(0).bandwidth == 1e9);
  CHECK(to_string(again.model.options) == to_string(first.model.options));
}

TEST_CASE("an option of choices or a file takes other words as a path, and writes it as an absolute one", "[job]") {
  const std::string here = std::filesystem::current_path().string();
  const auto with = [](const std::string& value, const std::vector<std::string>& overrides = {}) {
    return parse(test::minimal + "[job]\nstrategy = split\n[strategy]\nschedule = " + value + "\n", overrides,
                 "/jobs/toy.ini");
  };
  const auto names_file = [](const job::Job& job) {
    return std::holds_alternative<OptionFile>(job.strategy.options.entries().at(1).value);
  };

  const job::Job file = with("own/mine.csv");
  CHECK(file.strategy.options.text("schedule") == "/jobs/own/mine.csv");
  CHECK(names_file(file));
  CHECK(canonical_text(file).find("\nschedule = /jobs/own/mine.csv\n") != std::string::npos);
  const job::Job again = parse(canonical_text(file), {}, "/elsewhere/copy.ini");
  CHECK(to_string(again.strategy.options) == to_string(file.strategy.options));
  CHECK(with("gpipe", {"strategy.schedule=mine.csv"}).strategy.options.text("schedule") == here + "/mine.csv");
  CHECK(with("./gpipe").strategy.options.text("schedule") == "/jobs/gpipe");

  const job::Job choice = with("gpipe");
  CHECK(choice.strategy.options.text("schedule") == "gpipe");
  CHECK_FALSE(names_file(choice));
  CHECK(canonical_text(choice).find("\nschedule = gpipe\n") != std::string::npos);
  CHECK(test::refusal(ErrorCode::job, [&] {
          return with("\"\"");
        }).ends_with("has no value; give one of 1f1b, gpipe, or a file's path, or leave the key out"));
}

namespace {

/// Changes the working folder while this object exists.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::filesystem::path& folder) : before_(std::filesystem::current_path()) {
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
  }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;
  ~WorkingFolder() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

job::Job with_output(const std::string& output) { return parse(minimal, {"job.output=" + output}); }

/// [job] output for a run that begins on 22 November 2026 at 14:15:03 UTC.
std::filesystem::path resolved(const job::Job& job) {
  return job::resolved_output(job, std::chrono::system_clock::from_time_t(1795356903));
}

}  // namespace

TEST_CASE("braces in folders above the output are not placeholders", "[job]") {
  const TemporaryFolder folder;
  const WorkingFolder here(folder / "a{time}/b{c}");
  const std::filesystem::path working = std::filesystem::current_path();

  for (const std::string& output :
       std::vector<std::string>{"out", "./out", "../out", "x/../../out", (working / "out").string()}) {
    INFO(output);
    const job::Job job = with_output(output);
    CHECK_NOTHROW(job::check_output(job));
    CHECK_FALSE(job::has_placeholder(job));
    CHECK(resolved(job) == job.output);
  }
  CHECK_NOTHROW(job::check_output(parse(minimal)));
  CHECK_FALSE(job::has_placeholder(parse(minimal)));
}

TEST_CASE("placeholders in the output are filled in or refused", "[job]") {
  const TemporaryFolder folder;
  const WorkingFolder here(folder / "a{time}/b{c}");
  const std::filesystem::path working = std::filesystem::current_path();

  CHECK(job::has_placeholder(with_output("x-{time}")));
  CHECK(resolved(with_output("x-{time}")) == working / "x-20261122-141503");
  CHECK(resolved(with_output("../{time}/{time}")) == working.parent_path() / "20261122-141503/20261122-141503");
  CHECK(resolved(with_output("../../{time}/")) == folder.path() / "20261122-141503/");
  CHECK(resolved(with_output((working / "{time}").string())) == working / "20261122-141503");
  CHECK(resolved(with_output("/elsewhere/{time}")) == "/elsewhere/20261122-141503");
  CHECK_THAT(refusal(ErrorCode::job,
                     [] {
                       job::check_output(with_output("../{date}"));
                       return 0;
                     }),
             Contains("[job] output has the placeholder {date}"));
}

TEST_CASE("a placeholder behind a linked folder is found", "[job]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "real/sub");
  const WorkingFolder here(folder / "b{c}");
  std::filesystem::create_directory_symlink(folder / "real/sub", "link");

  const job::Job job = with_output("link/../{time}");

  CHECK_NOTHROW(job::check_output(job));
  CHECK(resolved(job) == std::filesystem::current_path() / "link/../20261122-141503");
}
