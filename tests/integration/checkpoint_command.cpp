// shardrun checkpoint, and generate from a checkpoint.

#include <algorithm>
#include <string>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

json::value json_of(const Ended& ended) {
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return json::parse(ended.out);
}

}  // namespace

TEST_CASE("checkpoints are listed, shown, checked, exported, sampled from and imported", "[program]") {
  const JobFolder job;
  const auto checkpoint = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "checkpoint");
    return run_program(job.path(), words);
  };
  const auto generate = [&](const char* path) {
    const Ended ended = run_program(job.path(), {"generate", path, "--tokens", "20"});
    INFO(path << ended.err);
    CHECK(ended.code == 0);
    return ended;
  };
  REQUIRE(job.run({"job.ranks=2", "job.strategy=zero3", "checkpoint.every=2", "train.steps=4"}).code == 0);
  const std::filesystem::path saved = job.path() / "run" / "checkpoints";
  const std::string weights = read_file(job.path() / "run" / "weights.safetensors");

  const json::array listed = json_of(checkpoint({"list", "run", "--json"})).as_array();
  REQUIRE(listed.size() == 2);
  CHECK((listed[1].at("step") == 4 && listed[1].at("whole") == true && listed[1].at("files") == 2));
  CHECK((listed[1].at("strategy") == "zero3" && listed[1].at("samples") == 28));
  const json::value shown = json_of(checkpoint({"show", "run", "first_moment/layer.?/mlp/up/*", "--json"}));
  REQUIRE(shown.at("tensors").as_array().size() == 2);
  CHECK_THAT(std::string(shown.at_pointer("/tensors/0/name").as_string()), StartsWith("first_moment/layer."));
  CHECK(shown.at_pointer("/tensors/0/pieces").as_array().size() == 2);
  CHECK_THAT(checkpoint({"show", "run"}).out,
             Contains("\nstep 4, 28 samples consumed, seed 1337\n") && Contains("[model]\nname = gpt\n") &&
                 Contains("parameter  F32   layer.0/mlp/up/weights [16, 64] in 2 pieces\n"));
  CHECK_THAT(checkpoint({"verify", "run/checkpoints/step-000002"}).out, Contains("2 files, ") && Contains(": whole\n"));

  // Exported: the file that the run wrote, byte for byte; and the same tensors in several files.
  CHECK(checkpoint({"export", "run", "-o", "one.safetensors"}).code == 0);
  CHECK_THAT(checkpoint({"export", "run", "-o", "one.safetensors"}).err, Contains("'one.safetensors' exists"));
  CHECK(checkpoint({"export", "run", "-o", "one.safetensors", "--replace"}).code == 0);
  CHECK(read_file(job.path() / "one.safetensors") == weights);
  CHECK(checkpoint({"export", "run", "-o", "some", "--max-bytes", "8K", "--all"}).code == 0);
  CHECK(std::filesystem::exists(job.path() / "some" / "model.safetensors.index.json"));
  CHECK_THAT(checkpoint({"export", "run", "-o", "x.safetensors", "--max-bytes", "8K"}).err,
             Contains("--max-bytes has no effect on the one file 'x.safetensors'"));

  for (const std::vector<std::string>& output : std::vector<std::vector<std::string>>{
           {"run/checkpoints/step-000004/rank-1.safetensors", "--replace"}, {"run/checkpoints/step-000002"}}) {
    std::vector<std::string> words = {"export", "run", "-o"};
    words.insert(words.end(), output.begin(), output.end());
    const Ended refused = checkpoint(words);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, Contains("it is a checkpoint, and would be damaged: choose another folder"));
  }
  CHECK_THAT(checkpoint({"verify", "run"}).out, Contains(": whole\n"));

  // Imported, and exported again.
  const Ended imported = checkpoint({"import", "some", "--job", "job.ini", "-o", "made", "--step", "4"});
  CHECK(imported.code == 0);
  CHECK_THAT(imported.out, Contains("tensors in made/step-000004\nto go on: shardrun job.ini --resume=made\n"));
  CHECK_THAT(checkpoint({"import", "some", "--job=job.ini", "-o", "a b", "--set", "job.output=it's"}).out,
             Contains("\nto go on: shardrun job.ini --set 'job.output=it'\\''s' --resume='a b'\n"));
  CHECK(checkpoint({"export", "made", "--output=again.safetensors"}).code == 0);
  CHECK(read_file(job.path() / "again.safetensors") == weights);
  CHECK_THAT(checkpoint({"import", "some", "--job", "job.ini", "-o", "run"}).err, Contains("is the folder of a run"));
  CHECK_THAT(checkpoint({"import", "some", "--job", "job.ini", "-o", "far", "--step", "10000"}).err,
             Contains("--step is 10000, and the job ends after step "));
  CHECK_FALSE(std::filesystem::exists(job.path() / "far"));
  // The optimizer's states were imported, too: both runs end with the same weights.
  REQUIRE(job.run({"job.output=first", "checkpoint.resume=run", "train.steps=6"}).code == 0);
  REQUIRE(job.run({"job.output=second", "checkpoint.resume=made", "train.steps=6"}).code == 0);
  CHECK(read_file(job.path() / "first" / "weights.safetensors") ==
        read_file(job.path() / "second" / "weights.safetensors"));

  // Sampled from: the run's weights, one of its checkpoints, and the newest one if there are no weights.
  const Ended of_run = generate("run");
  CHECK(of_run.err.empty());
  CHECK(generate("run/checkpoints/step-000004").out == of_run.out);
  std::filesystem::remove(job.path() / "run" / "weights.safetensors");
  const Ended newest = generate("run");
  CHECK(newest.out == of_run.out);
  CHECK_THAT(newest.err, StartsWith("samples from the checkpoint of step 4: "));

  // A damaged checkpoint.
  std::string bytes = read_file(saved / "step-000004" / "rank-1.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(saved / "step-000004" / "rank-1.safetensors", bytes);
  std::filesystem::resize_file(saved / "step-000002" / "rank-0.safetensors", 100);
  const Ended faulty = checkpoint({"verify", "run", "--json"});
  CHECK(faulty.code == 2);
  CHECK(json::parse(faulty.out).at("faults").as_array().size() == 1);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"checkpoint", "export", "run", "-o", "x"}, {"generate", "run"}}) {
    const Ended refused = run_program(job.path(), words);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, Contains("rank-1.safetensors' has other bytes than when it was written"));
  }
  const std::string damaged = checkpoint({"list", "run/checkpoints"}).out;
  CHECK_THAT(damaged, Contains("damaged: ") && Contains("rank-0.safetensors' has 100 bytes, and the manifest says "));
  CHECK_THAT(checkpoint({"lst"}).err, Contains("there is no command 'lst' (did you mean 'list'?)"));
  std::filesystem::remove(saved / "step-000004" / "manifest.json");
  const Ended without = checkpoint({"verify", "run"});
  CHECK(without.code == 2);
  CHECK_THAT(without.out + without.err, Contains("step-000004/manifest.json"));
}
