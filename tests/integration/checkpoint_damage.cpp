// Damaged, incomplete and forged checkpoints. A run that should go on from one is refused, and the message names it.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/device/cores.h"
#include "core/files/hash.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> first_part = {"train.steps=4", "train.eval_every=0", "checkpoint.every=2"};

void flip(const fs::path& file, std::size_t byte) {
  std::string bytes = read_file(file);
  bytes.at(byte) = static_cast<char>(bytes.at(byte) ^ 4);
  write_file(file, bytes);
}

/// Changes the text of a manifest together with its hash, as a forger would.
void edit(const fs::path& manifest, const std::string& from, const std::string& to) {
  constexpr std::string_view before = "{\"xxh3\":\"";
  const std::size_t rest = before.size() + 32 + 2;
  std::string text = read_file(manifest).substr(rest);
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  write_file(manifest, fmt::format("{}{}\",{}", before, to_string(files::hash_of(text)), text));
}

/// A way to damage the newer of a run's two checkpoints, and what the refusal says.
struct Damage {
  const char* name;
  std::function<void(const fs::path& newest, const fs::path& older)> make;
  std::vector<std::string> said;
  bool starts = false;  ///< seen only once the ranks read the data
};

const char* const data = "rank-0.safetensors";

std::vector<Damage> damages() {
  return {
      {"a byte of a tensor",
       [](const fs::path& newest, const fs::path&) { flip(newest / data, fs::file_size(newest / data) - 100); },
       {"step-000004/rank-0.safetensors' has other bytes than when it was written", "damaged"},
       true},
      {"a byte of the header",
       [](const fs::path& newest, const fs::path&) { flip(newest / data, 60); },
       {"step-000004/rank-0.safetensors' has other bytes than when it was written"},
       true},
      {"a file of another checkpoint",
       [](const fs::path& newest, const fs::path& older) {
         fs::copy_file(older / data, newest / data, fs::copy_options::overwrite_existing);
       },
       {"step-000004/rank-0.safetensors' has other bytes than when it was written", "or is of another checkpoint"},
       true},
      {"a byte of the manifest",
       [](const fs::path& newest, const fs::path&) { flip(newest / "manifest.json", 300); },
       {"step-000004/manifest.json", "its hash", "is not that of its bytes"}},
      {"a manifest that is cut short",
       [](const fs::path& newest, const fs::path&) {
         fs::resize_file(newest / "manifest.json", fs::file_size(newest / "manifest.json") / 2);
       },
       {"step-000004/manifest.json", "its hash"}},
      {"an empty manifest",
       [](const fs::path& newest, const fs::path&) { write_file(newest / "manifest.json", ""); },
       {"step-000004/manifest.json", "its hash"}},
      {"a file that is cut short",
       [](const fs::path& newest, const fs::path&) {
         fs::resize_file(newest / data, fs::file_size(newest / data) - 1);
       },
       {"step-000004/rank-0.safetensors' has ", "it was cut short or replaced"}},
      {"a missing file",
       [](const fs::path& newest, const fs::path&) { fs::remove(newest / data); },
       {"cannot read '", "step-000004/rank-0.safetensors': No such file"}},
      {"a link in place of a file",
       [](const fs::path& newest, const fs::path& older) {
         fs::remove(newest / data);
         fs::create_symlink(fs::absolute(older / data), newest / data);
       },
       {"step-000004/rank-0.safetensors' is a link"}},
      {"a link in place of the manifest",
       [](const fs::path& newest, const fs::path& older) {
         fs::remove(newest / "manifest.json");
         fs::create_symlink(fs::absolute(older / "manifest.json"), newest / "manifest.json");
       },
       {"step-000004/manifest.json' is a link"}},
      {"a folder in place of a file",
       [](const fs::path& newest, const fs::path&) {
         fs::remove(newest / data);
         fs::create_directory(newest / data);
       },
       {"step-000004/rank-0.safetensors' is not a regular file"}},
      {"a name that leads out of the folder",
       [](const fs::path& newest, const fs::path&) {
         edit(newest / "manifest.json", "\"rank-0.safetensors\"", "\"../step-000002/rank-0.safetensors\"");
       },
       {"files[0].name", "'../step-000002/rank-0.safetensors' is no name of a rank's file"}},
      {"another step than the folder's",
       [](const fs::path& newest, const fs::path&) { edit(newest / "manifest.json", "\"step\":4", "\"step\":2"); },
       {"step-000004' has the checkpoint of step 2: it was renamed or replaced"}},
      {"a piece behind the end of its file",
       [](const fs::path& newest, const fs::path&) {
         edit(newest / "manifest.json", "\"offset\":", "\"offset\":900000000");
       },
       {"step-000004/manifest.json", "ends behind the end of rank-0.safetensors"}},
      {"a format that is not known",
       [](const fs::path& newest, const fs::path&) { edit(newest / "manifest.json", "\"format\":1", "\"format\":2"); },
       {"step-000004/manifest.json", "this version of shardrun reads 1"}},
  };
}

/// All files of a run, and their bytes.
std::vector<std::pair<std::string, std::string>> contents_of_run(const JobFolder& job) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& entry : fs::recursive_directory_iterator(job.path() / "run/checkpoints")) {
    files.emplace_back(entry.path(), entry.is_regular_file() ? read_file(entry.path()) : "");
  }
  for (const char* name : {"metrics.jsonl", "weights.safetensors"}) {
    files.emplace_back(name, read_file(job.path() / "run" / name));
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> second_part(int ranks) {
  std::vector<std::string> settings = {"train.steps=6", "train.eval_every=0", "checkpoint.every=2"};
  if (ranks > 1) {
    settings.insert(settings.end(), {"job.ranks=2", "job.strategy=dp", "job.transport=shm"});
  }
  return settings;
}

}  // namespace

TEST_CASE("a damaged checkpoint is refused by name, and no file changes") {
  const JobFolder sound;
  REQUIRE(sound.run(first_part).code == 0);
  for (const Damage& damage : damages()) {
    INFO(damage.name);
    const JobFolder job;
    fs::copy(sound.path() / "run", job.path() / "run", fs::copy_options::recursive);
    const fs::path checkpoints = job.path() / "run/checkpoints";
    damage.make(checkpoints / "step-000004", checkpoints / "step-000002");
    const auto before = contents_of_run(job);

    for (const int ranks : damage.starts ? std::vector<int>{1, 2} : std::vector<int>{1}) {
      const std::vector<std::string> words = {"job.ini", "--resume=run/checkpoints/step-000004"};
      const Ended ended = run_program(job.path(), with_settings(words, second_part(ranks)));

      INFO(ranks << " ranks: " << ended.out << ended.err);
      CHECK(ended.code == (ranks == 1 ? 2 : 1));  // a rank that fails fails the job
      for (const std::string& said : damage.said) {
        CHECK_THAT(ended.err, Contains(said));
      }
      CHECK(contents_of_run(job) == before);
      if (!damage.starts) {
        CHECK(read_json(job.path() / "run/summary.json").at("status") == "finished");
      }
    }
  }
}

TEST_CASE("with restarts, a damaged checkpoint is set aside, and the job resumes from the one before it") {
  const JobFolder job;
  for (const int ranks : {1, 2}) {
    INFO(ranks << " ranks");
    fs::remove_all(job.path() / "run");
    fs::remove_all(job.path() / "whole");
    const auto with = [&](const std::vector<std::string>& more) {
      std::vector<std::string> settings = {"train.schedule=constant",
                                           "train.eval_every=0",
                                           "checkpoint.every=2",
                                           "checkpoint.keep=0",
                                           "job.transport=shm",
                                           fmt::format("job.ranks={}", ranks),
                                           ranks == 1 ? "job.strategy=single" : "job.strategy=dp"};
      settings.insert(settings.end(), more.begin(), more.end());
      return settings;
    };
    REQUIRE(job.run(with({"train.steps=6", "job.output=whole"})).code == 0);
    REQUIRE(job.run(with({"train.steps=4"})).code == 0);
    const fs::path checkpoints = job.path() / "run/checkpoints";
    flip(checkpoints / "step-000004" / data, fs::file_size(checkpoints / "step-000004" / data) - 100);
    const std::string damaged = read_file(checkpoints / "step-000004" / data);
    fs::create_directory(checkpoints / "step-000005");
    write_file(checkpoints / "step-000005/manifest.json", "{");

    const Ended ended = job.run(with({"train.steps=6", "checkpoint.resume=auto", "job.restarts=1"}));

    INFO(ended.out << ended.err);
    CHECK(ended.code == 0);
    CHECK_THAT(ended.out,
               Contains("step-000004/rank-0.safetensors' has other bytes than when it was written") &&
                   Contains("; set aside as run/checkpoints/step-000004.damaged; passes by damaged checkpoints: "
                            "cannot read '") &&
                   Contains("step-000005/manifest.json'") && Contains("; attempt 2 of 2 goes on after step 2 (") &&
                   !Contains("Remove that checkpoint's folder"));
    CHECK(read_file(checkpoints / "step-000004.damaged" / data) == damaged);
    CHECK(fs::exists(checkpoints / "step-000004/manifest.json"));  // saved again
    CHECK(read_file(job.path() / "run/weights.safetensors") == read_file(job.path() / "whole/weights.safetensors"));
  }
}

TEST_CASE("with restarts, a job does not start from step 0 when its only checkpoint is damaged") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=2", "train.eval_every=0", "checkpoint.every=2"}).code == 0);
  const fs::path checkpoint = job.path() / "run/checkpoints/step-000002";
  flip(checkpoint / data, fs::file_size(checkpoint / data) - 100);
  const std::vector<std::string> further = {"train.steps=4", "train.eval_every=0", "job.restarts=3"};

  // The user has named the checkpoint, so it stays where it is.
  const Ended named =
      run_program(job.path(), with_settings({"job.ini", "--resume=run/checkpoints/step-000002/"}, further));
  INFO(named.out << named.err);
  CHECK(named.code == 1);
  CHECK_THAT(named.err,
             Contains("has other bytes than when it was written") && Contains("because the checkpoint was named"));
  CHECK(fs::exists(checkpoint));

  const Ended ended = run_program(job.path(), with_settings({"job.ini", "--resume"}, further));
  INFO(ended.out << ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("1 checkpoint in '") && Contains("step-000002.damaged' is damaged and was set aside"));
  CHECK_FALSE(fs::exists(checkpoint));
  CHECK(read_json(job.path() / "run/summary.json").at("status") == "failed");

  // The next run does not start from step 0 either.
  for (const char* resume : {"checkpoint.resume=auto", "checkpoint.resume=never"}) {
    const Ended again = job.run({"train.steps=4", "train.eval_every=0", resume});
    INFO(resume << again.out << again.err);
    CHECK(again.code == 2);
    CHECK_THAT(again.err, Contains("step-000002.damaged' is damaged") && Contains("remove what is there"));
  }
  CHECK(read_json(job.path() / "run/summary.json").at("status") == "failed");
}

TEST_CASE("a job with a range of ranks loses no rank because of a damaged checkpoint") {
  if (device::usable_cores() < 2) {
    WARN("not tested, because the job would begin with one rank here");
    return;
  }
  const JobFolder job;
  const std::vector<std::string> common = {"train.eval_every=0", "train.schedule=constant", "checkpoint.every=2",
                                           "job.strategy=dp", "job.transport=shm"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> settings = common;
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  };
  REQUIRE(job.run(with({"train.steps=4", "job.ranks=2"})).code == 0);
  const fs::path checkpoint = job.path() / "run/checkpoints/step-000004";
  flip(checkpoint / data, fs::file_size(checkpoint / data) - 100);
  const Ended ended = job.run(with({"train.steps=6", "job.ranks=1..2", "job.restarts=1", "checkpoint.resume=auto"}));
  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, Contains("attempt 2 of 2 goes on after step 2 (record"));
}

TEST_CASE("a folder whose checkpoints cannot be read is refused and left unchanged") {
  const JobFolder job;
  REQUIRE(job.run(first_part).code == 0);
  for (const char* step : {"step-000002", "step-000004"}) {
    fs::resize_file(job.path() / "run/checkpoints" / step / data, 100);
  }
  const auto before = contents_of_run(job);
  for (const char* resume : {"checkpoint.resume=auto", "checkpoint.resume=never"}) {
    std::vector<std::string> settings = second_part(1);
    settings.emplace_back(resume);
    const Ended ended = job.run(settings);
    INFO(resume << ended.out << ended.err);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err, Contains("2 checkpoints in '") && Contains("and none can be read ('") &&
                              Contains("rank-0.safetensors' has 100 bytes") &&
                              Contains("remove what is there to begin at the start"));
    CHECK(contents_of_run(job) == before);
  }
}

TEST_CASE("--resume takes the newest checkpoint that can be read, and names those that cannot") {
  const JobFolder job;
  REQUIRE(job.run(first_part).code == 0);
  const fs::path checkpoints = job.path() / "run/checkpoints";
  fs::resize_file(checkpoints / "step-000004/rank-0.safetensors", 100);

  const Ended ended = run_program(job.path(), with_settings({"job.ini", "--resume"}, second_part(1)));

  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out,
             Contains("passes by a damaged checkpoint") && Contains("step-000004/rank-0.safetensors' has 100"));
  CHECK_THAT(ended.out, Contains("goes on after step 2 from "));
  CHECK(run_program(job.path(), {"checkpoint", "verify", "run/checkpoints/step-000004"}).code == 0);  // saved again
}

TEST_CASE("no whole checkpoint is removed in favour of an unreadable one") {
  const JobFolder job;
  REQUIRE(job.run(first_part).code == 0);
  const fs::path checkpoints = job.path() / "run/checkpoints";
  const fs::path damaged = checkpoints / "step-000004";
  fs::resize_file(damaged / "rank-0.safetensors", 100);

  const Ended ended = run_program(
      job.path(), with_settings({"job.ini", "--resume"},
                                {"train.steps=6", "train.eval_every=0", "checkpoint.every=3", "checkpoint.keep=2"}));

  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, Contains("goes on after step 2 from "));
  CHECK(fs::file_size(damaged / "rank-0.safetensors") == 100);  // nothing has saved it again
  for (const char* whole : {"step-000003", "step-000006"}) {
    CHECK(run_program(job.path(), {"checkpoint", "verify", fmt::format("run/checkpoints/{}", whole)}).code == 0);
  }
  CHECK(files_in(checkpoints) == 3);
}

TEST_CASE("--resume skips folders without a manifest and files that are not checkpoints") {
  const JobFolder job;
  REQUIRE(job.run(first_part).code == 0);
  const fs::path checkpoints = job.path() / "run/checkpoints";
  fs::create_directory(checkpoints / "step-000005");
  fs::create_directory(checkpoints / "step-9");
  fs::create_directory(checkpoints / ".step-000009.tmp");
  write_file(checkpoints / "step-000008.txt", "");

  const Ended ended = run_program(job.path(), with_settings({"job.ini", "--resume"}, second_part(1)));

  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, Contains("goes on after step 4 from "));
  CHECK(fs::exists(checkpoints / "step-000006/manifest.json"));
  CHECK(fs::exists(checkpoints / "step-000005"));  // no run may remove it
}

TEST_CASE("the next run removes what a killed run was writing or removing, even if it saves nothing") {
  const JobFolder job;
  REQUIRE(job.run(first_part).code == 0);
  fs::remove(job.path() / "run/weights.safetensors");  // otherwise the run would have nothing left to do
  const fs::path checkpoints = job.path() / "run/checkpoints";
  fs::copy(checkpoints / "step-000002", checkpoints / ".step-000002.removed");
  fs::copy(checkpoints / "step-000004", checkpoints / ".step-000005.tmp");

  const Ended ended = run_program(job.path(), with_settings({"job.ini", "--resume"}, first_part));

  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  CHECK(files_in(checkpoints) == 2);
}
