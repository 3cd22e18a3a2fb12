#include <map>
#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/npy.h"
#include "tests/support/text_job.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

Ended verify(const JobFolder& job, const std::vector<std::string>& overrides) {
  return run_program(job.path(), with_settings({"verify", "job.ini", "--steps", "2", "--json"}, overrides));
}

std::vector<std::string> with(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

void check_passed(const Ended& ended) {
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const json::object report = json::parse(ended.out).as_object();
  CHECK(report.at("passed").as_bool());
  CHECK_FALSE(report.at("worst").as_array().empty());
}

/// `x.npy` of 60 samples with 5 features, and `y.npy` with one of 3 labels each.
void write_classes(const std::filesystem::path& folder) {
  std::string features;
  std::string labels;
  for (std::int64_t sample = 0; sample < 60; ++sample) {
    for (std::int64_t feature = 0; feature < 5; ++feature) {
      features += bytes_of({static_cast<float>((sample * 7 + feature * 3) % 11) / 11.0F});
    }
    labels += bytes_of({sample % 3});
  }
  write_file(folder / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (60, 5), }", features));
  write_file(folder / "y.npy", npy_file("{'descr': '<i8', 'fortran_order': False, 'shape': (60,), }", labels));
}

/// Seven heads, biases, an untied head, dropout, and three uneven microbatches.
const std::vector<std::string> uneven = {"model.heads=7",       "model.width=28",    "model.bias=true",
                                         "model.tied=false",    "model.dropout=0.1", "data.batch=7",
                                         "data.microbatches=3", "model.context=8"};

}  // namespace

TEST_CASE("jobs of real ranks agree with the reference", "[verify]") {
  const std::vector<std::string> transports = installed("transport");
  std::size_t turn = 0;
  for (const char* strategy : {"dp", "tp"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      // Each strategy with each number of ranks once, each transport in turn.
      const std::string& transport = transports.at(turn++ % transports.size());
      DYNAMIC_SECTION(strategy << " of " << ranks << " over " << transport) {
        const JobFolder job;
        const std::vector<std::string> how = {"job.strategy=" + std::string(strategy), "job.transport=" + transport,
                                              "job.ranks=" + std::to_string(ranks)};
        check_passed(verify(job, how));
        check_passed(verify(job, with(how, uneven)));
        CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
      }
    }
  }
}

TEST_CASE("a sequence split over the ranks of tp agrees with the reference, and takes less memory", "[verify]") {
  const std::string ranks = GENERATE("2", "3");
  const std::string transport = ranks == "2" ? installed("transport").front() : installed("transport").back();
  const JobFolder job;
  const std::vector<std::string> whole = {"job.strategy=tp", "job.transport=" + transport, "job.ranks=" + ranks};
  const std::vector<std::string> split = with(whole, {"strategy.sequence=true"});
  check_passed(verify(job, with(split, uneven)));

  const auto first_rank = [&](const std::vector<std::string>& how) {
    const Ended plan = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, how));
    INFO(plan.err);
    REQUIRE(plan.code == 0);
    return json::parse(plan.out).at("ranks").at(0).as_object();
  };
  const json::object before = first_rank(whole);
  const json::object after = first_rank(split);
  CHECK_FALSE(before.at("sent_bytes").at("model").as_object().contains("reduce_scatter"));
  CHECK(after.at("sent_bytes").at("model").as_object().contains("reduce_scatter"));
  CHECK(after.at("sent_bytes").at("model").as_object().contains("all_gather"));
  CHECK(after.at("bytes").at("activations").to_number<std::int64_t>() <
        before.at("bytes").at("activations").to_number<std::int64_t>());
}

TEST_CASE("a job with recomputation agrees with the reference, and takes less memory and more work", "[verify]") {
  for (const char* strategy : {"dp", "tp"}) {
    DYNAMIC_SECTION(strategy) {
      const JobFolder job;
      const std::vector<std::string> kept = {"job.strategy=" + std::string(strategy), "job.ranks=2"};
      const std::vector<std::string> again = with(kept, {"train.remat=layer"});
      check_passed(verify(job, with(again, uneven)));
      if (strategy == std::string("tp")) {
        check_passed(verify(job, with(with(again, uneven), {"strategy.sequence=true"})));
      }
      check_passed(verify(job, with(kept, {"train.remat=selective"})));

      const auto planned = [&](const std::vector<std::string>& how) {
        const Ended plan = run_program(job.path(), with_settings({"plan", "job.ini", "--json"}, how));
        INFO(plan.err);
        REQUIRE(plan.code == 0);
        return json::parse(plan.out).as_object();
      };
      const auto activations = [](const json::object& plan) {
        return plan.at("ranks").at(0).at("bytes").at("activations").to_number<std::int64_t>();
      };
      const json::object before = planned(kept);
      const json::object after = planned(again);
      CHECK(activations(after) < activations(before));
      CHECK(after.at("flops_per_step").to_number<std::int64_t>() >
            before.at("flops_per_step").to_number<std::int64_t>());
    }
  }
}

TEST_CASE("jobs of real ranks in mixed precision agree with the reference", "[verify]") {
  const std::vector<std::string> transports = installed("transport");
  const std::vector<std::vector<std::string>> splits = {
      {"job.strategy=dp", "job.ranks=3", "train.gradients=bfloat16"},
      {"job.strategy=tp", "job.ranks=4", "strategy.sequence=true", "train.gradients=bfloat16"},
      {"job.strategy=tp", "job.ranks=2", "train.remat=layer"},
      {"job.strategy=zero1", "job.ranks=2", "train.moments=bfloat16", "train.beta2=0.95"},
      {"job.strategy=zero2", "job.ranks=3", "train.gradients=bfloat16"},
      {"job.strategy=zero3", "job.ranks=4", "train.remat=selective"},
      {"job.strategy=hsdp", "job.ranks=4"},
      {"job.strategy=pp", "job.ranks=2", "strategy.schedule=gpipe"},
      {"job.strategy=pp", "job.ranks=2", "strategy.schedule=zb-h1", "train.gradients=bfloat16"},
      {"job.strategy=3d", "job.ranks=4", "mesh.data=2", "mesh.model=2", "strategy.zero=2"}};
  for (std::size_t s = 0; s < splits.size(); ++s) {
    const std::vector<std::string> how =
        with(splits[s], {"train.precision=mixed", "job.transport=" + transports.at(s % transports.size())});
    INFO("split " << s);
    const JobFolder job;
    check_passed(verify(job, with(how, uneven)));
  }
}

TEST_CASE("an mlp of real ranks agrees with the reference", "[verify]") {
  for (const std::string& transport : installed("transport")) {
    for (const char* strategy : {"dp", "tp"}) {
      DYNAMIC_SECTION(strategy << " over " << transport) {
        const JobFolder job;
        write_classes(job.path());
        write_file(job.path() / "mlp.ini",
                   "[job]\noutput = run\nthreads = 1\n[model]\nname = mlp\nhidden = 9\nloss = cross_entropy\n"
                   "[data]\narrays = x.npy, y.npy\nbatch = 7\nmicrobatches = 3\n"
                   "[train]\nsteps = 4\nlearning_rate = 0.1\noptimizer = sgd\nmomentum = 0.9\nclip = 1\n");
        check_passed(run_program(
            job.path(), with_settings({"verify", "mlp.ini", "--json"}, {"job.strategy=" + std::string(strategy),
                                                                        "job.transport=" + transport, "job.ranks=3"})));
      }
    }
  }
}

TEST_CASE("a strategy and a transport from outside serve one job, with a transport for each axis", "[verify]") {
  const JobFolder job;
  const std::vector<std::string> how = {"plugins.path=" SHARDRUN_OUTSIDE_STRATEGIES ":" SHARDRUN_OUTSIDE_TRANSPORTS,
                                        "job.strategy=grid", "job.ranks=4", "job.transport=sockets",
                                        "transport.rows=" + installed("transport").back()};

  check_passed(verify(job, how));

  const Ended ended = job.run(how);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const json::object sent = job.summary().at("ranks").as_array().at(3).as_object().at("sent_bytes").as_object();
  CHECK(sent.contains("rows"));
  CHECK(sent.contains("columns"));
}

TEST_CASE("verify shows its progress and what it compared, and refuses steps it cannot run", "[verify]") {
  const JobFolder job;
  for (const char* ranks : {"1", "2"}) {
    const Ended text = run_program(job.path(), with_settings({"verify", "job.ini", "--rows", "2"},
                                                             {"job.strategy=dp", "job.ranks=" + std::string(ranks)}));
    INFO(text.out << text.err);
    CHECK(text.code == 0);
    CHECK_THAT(text.out, Contains("step 3/3  loss") && Contains("multiple") && Contains("passed"));
    CHECK_THAT(text.out, Contains("running the job: step 1/3") && Contains("running the job: validation") &&
                             Contains("comparing with the reference: step 1/3  0%") &&
                             Contains("comparing with the reference: validation"));
    CHECK_THAT(text.out, Contains(" values a step, over 3 steps; up to 2 times what rounding does passes\n"));
  }
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const std::string lock = read_file(job.path() / "run/.lock");
  const Ended of_run = run_program(job.path(), {"verify", "run/job.ini"});  // which writes nothing there
  INFO(of_run.err);
  CHECK(of_run.code == 0);
  CHECK(read_file(job.path() / "run/.lock") == lock);
  CHECK(run_program(job.path(), {"verify", "job.ini", "--steps", "31"}).code == 2);
  CHECK(run_program(job.path(), {"verify", "job.ini", "--steps", "0"}).code == 2);
}

TEST_CASE("verify of some tensors compares only these, and skips the validation unless the loss is among them",
          "[verify]") {
  const JobFolder job;
  for (const char* ranks : {"1", "2"}) {
    const std::vector<std::string> how = {"job.strategy=tp", "job.ranks=" + std::string(ranks)};
    const Ended some =
        run_program(job.path(), with_settings({"verify", "job.ini", "--rows", "100", "--json", "--tensors",
                                               "layer.0/mlp/*", "--tensors", "final_norm/gain"},
                                              how));
    INFO(some.err);
    REQUIRE(some.code == 0);
    CHECK_THAT(some.err, !Contains("validation"));
    const json::object report = json::parse(some.out).as_object();
    CHECK(report.at("passed").as_bool());
    // Two matrices and a gain, each with its gradient and two moments.
    CHECK(report.at("tensors").to_number<int>() == 12);
    for (const json::value& row : report.at("worst").as_array()) {
      const std::string name(row.at("tensor").as_string());
      CHECK((name.find("layer.0/mlp/") != std::string::npos || name.find("final_norm/gain") != std::string::npos));
    }
  }
  const Ended none = run_program(job.path(), {"verify", "job.ini", "--tensors", "layer.0/mlp/upp/weights"});
  CHECK(none.code == 2);
  CHECK(none.out.empty());
  CHECK_THAT(none.err, Contains("matches no tensor (did you mean 'layer.0/mlp/up/weights'?)"));
}

namespace {

/// A folder with a trained model, a file of prompts that share a beginning, and a job that continues them.
class PromptFolder : public JobFolder {
 public:
  PromptFolder() {
    write_file(path() / "job.ini",
               "[job]\noutput = run\nthreads = 1\n[model]\nname = llama\nlayers = 2\nheads = 6\nkv_heads = 2\n"
               "head_dim = 32\nwidth = 64\nhidden = 192\ncontext = 32\ntied = true\n"
               "[data]\ntext = corpus.txt\nbatch = 4\n[train]\nsteps = 20\nlearning_rate = 0.01\nwarmup = 0\n");
    REQUIRE(run().code == 0);
    write_file(path() / "prompts.jsonl",
               "{\"prompt\": \"the cat sat\", \"max_tokens\": 20, \"id\": \"first\"}\n\n{\"prompt\": \"a\"}\n"
               "{\"prompt\": \"the cat saw some\", \"stop\": \" \"}\n"
               "{\"prompt\": [1, 2, 3, 4, 5, 6, 7], \"prompt_logprobs\": 3, \"max_tokens\": 2}\n");
    write_file(
        path() / "continue.ini",
        "[job]\ntask = infer\nthreads = 1\n[model]\nfrom = run\n[infer]\nfrom = prompts.jsonl\nto = answers.jsonl\n"
        "tokens = 6\nslots = 2\nchunk = 4\npage = 4\nprompt_logprobs = true\n");
  }

  [[nodiscard]] Ended verify_prompts(const std::vector<std::string>& settings,
                                     const std::vector<std::string>& words = {"--steps", "9"}) const {
    std::vector<std::string> all = {"verify", "continue.ini", "--json", "--rows", "100"};
    all.insert(all.end(), words.begin(), words.end());
    return run_program(path(), with_settings(all, settings));
  }
};

/// The rows of a report about sequences, by the sequence's number.
std::map<int, json::object> sequences_in(const Ended& ended) {
  std::map<int, json::object> found;
  const json::value report = json::parse(ended.out);
  for (const json::value& row : report.at("worst").as_array()) {
    const std::string name(row.at("tensor").as_string());
    if (name.starts_with("sequence ") && row.at("what") == "prediction") {
      found.emplace(std::stoi(name.substr(9)), row.as_object());
    }
  }
  return found;
}

}  // namespace

TEST_CASE("jobs that continue prompts agree with the reference, whatever the split and the weights", "[verify]") {
  const PromptFolder job;
  for (const std::vector<std::string>& split : std::vector<std::vector<std::string>>{
           {"job.strategy=single"},
           {"job.strategy=tp", "job.ranks=3"},
           {"job.strategy=pp", "job.ranks=2"},
           {"job.strategy=zero3", "job.ranks=2"},
           {"job.strategy=dp", "job.ranks=2"},
           {"job.strategy=3d", "job.ranks=8", "mesh.data=2", "mesh.model=2", "mesh.pipe=2"}}) {
    for (const char* weights : {"float32", "bfloat16", "float16", "int8"}) {
      CAPTURE(split, weights);
      const Ended ended = job.verify_prompts(with(split, {"infer.weights=" + std::string(weights)}));
      check_passed(ended);
      CHECK(json::parse(ended.out).at("steps") == 4);
      CHECK(sequences_in(ended).size() == 4);
      CHECK_THAT(ended.out, Contains("\"tensor\": \"layer.1/mlp/down/weights\", \"what\": \"initial\""));
    }
  }
  const std::vector<std::string> rounded = {"infer.weights=bfloat16", "infer.activations=bfloat16"};
  check_passed(job.verify_prompts(with({"job.strategy=single"}, rounded)));
  check_passed(job.verify_prompts(with({"job.strategy=tp", "job.ranks=2"}, rounded)));
  check_passed(job.verify_prompts(with({"job.strategy=pp", "job.ranks=2"}, rounded)));
  check_passed(job.verify_prompts({"job.strategy=tp", "job.ranks=2", "infer.cache=bfloat16", "infer.invariant=ranks"}));
  CHECK_FALSE(std::filesystem::exists(job.path() / "answers.jsonl"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "runs"));
}

TEST_CASE("a flipped bit on one rank that continues prompts is found, with the sequence and the position", "[verify]") {
  const PromptFolder job;
  const std::vector<std::string> tp = {"job.strategy=tp", "job.ranks=3", "job.transport=chaos"};
  check_passed(job.verify_prompts(tp));
  int op = 0;
  /// Flips a bit in each of the first rank's ops in turn, until it is one of this name.
  const auto flip_in = [&](const std::string& name) {
    Ended ended;
    while (ended.err.find(name) == std::string::npos && ++op < 40) {
      ended = job.verify_prompts(with(tp, {"transport.chaos.rank=0", "transport.chaos.corrupt=true",
                                           "transport.chaos.at_op=" + std::to_string(op)}));
    }
    INFO(ended.err << ended.out);
    CHECK(ended.code == 1);
    return json::parse(ended.out).at("worst").at(0).as_object();
  };
  // In the first chunk of a prompt, tokens 0 to 3: the caches of the layer behind it are wrong.
  const json::object caches = flip_in("'all_reduce of layer.0/mlp/down'");
  CHECK_THAT(std::string(caches.at("tensor").as_string()), StartsWith("sequence "));
  CHECK(caches.at("what") == "prediction");
  CHECK(caches.at("position") == 3);
  CHECK(caches.at("line") == 1);
  CHECK(caches.at("id") == "first");
  CHECK_THAT(std::string(caches.at("note").as_string()),
             EndsWith("; the first position that differs is 3; the prompt is in line 1, with the id \"first\""));
  // Only the first rank's copy of the logits is wrong.
  const json::object copy = flip_in("'all_gather of logits'");
  CHECK(copy.at("tensor") == "sequence 1");
  CHECK(copy.at("what") == "replica");
  CHECK(copy.at("ranks") == json::array{0, 1});
  CHECK(copy.at("position") == 3);
  CHECK(copy.at("line") == 1);
  CHECK_THAT(std::string(copy.at("note").as_string()), Contains("at position 3 is") && Contains("on rank 0, "));
}

TEST_CASE("wrong logits of one rank from which it draws another token are found, too", "[verify]") {
  const PromptFolder job;
  const std::vector<std::string> tp = {"job.strategy=tp",        "job.ranks=3",
                                       "job.transport=chaos",    "infer.temperature=5",
                                       "transport.chaos.rank=2", "transport.chaos.corrupt=true"};
  for (int op = 44; op < 110; ++op) {
    const std::vector<std::string> flipped = with(tp, {"transport.chaos.at_op=" + std::to_string(op)});
    const Ended ended = job.verify_prompts(flipped);
    if (ended.err.find("the ranks drew different tokens") == std::string::npos ||
        ended.out.find("worst") == std::string::npos) {  // the bit was one of the numbers that ranks compare
      continue;
    }
    INFO(ended.err << ended.out);
    CHECK(ended.code == 1);
    const json::object worst = json::parse(ended.out).at("worst").at(0).as_object();
    CHECK(worst.at("what") == "replica");
    CHECK_THAT(std::string(worst.at("tensor").as_string()), StartsWith("sequence "));
    CHECK(worst.contains("position"));
    return;
  }
  FAIL("no flipped bit has changed a token");
}

TEST_CASE("verify of prompts tells which lines are skipped, and that it compares fewer prompts", "[verify]") {
  const PromptFolder job;
  for (const char* mode : {"infer.events=true", "infer.malformed=skip"}) {
    CAPTURE(mode);
    write_file(job.path() / "prompts.jsonl", "{\"promt\": \"a\"}\n{\"prompt\": \"a\"}\n{\"prompt\": 7}\n");
    const Ended one = job.verify_prompts({mode});
    check_passed(one);
    CHECK(json::parse(one.out).at("steps") == 1);
    CHECK_THAT(one.err, Contains("prompts.jsonl:1: ") && Contains("prompts.jsonl:3: "));
    CHECK_THAT(one.err, Contains("prompts.jsonl' has 1 prompt, fewer than the 9 to compare"));
    write_file(job.path() / "prompts.jsonl", "{\"promt\": \"a\"}\n\n{\"prompt\": 7}\n");
    const Ended none = job.verify_prompts({mode});
    CHECK(none.code == 2);
    CHECK_THAT(none.err, Contains("prompts.jsonl' has no prompts: 2 lines are skipped"));
  }
}

TEST_CASE("verify of prompts takes the first ones and the chosen tensors, and refuses what it cannot record",
          "[verify]") {
  const PromptFolder job;
  const Ended two = job.verify_prompts({}, {"--steps", "2", "--tensors", "sequence*"});
  check_passed(two);
  CHECK(sequences_in(two).size() == 2);
  CHECK(json::parse(two.out).at("tensors") == 2);
  const auto refused = [&](const std::vector<std::string>& settings, const std::vector<std::string>& words) {
    const Ended ended = job.verify_prompts(settings, words);
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK_THAT(refused({"infer.from=-"}, {}), Contains("[infer] from is a stream, and verify reads prompts from a file"));
  CHECK_THAT(refused({}, {"--in-process"}), Contains("the ranks of a job that continues prompts are processes"));
  CHECK_THAT(refused({}, {"--steps", "9", "--tensors", "sequence 5"}),
             Contains("--tensors 'sequence 5' matches no tensor (did you mean 'sequence 1'?)") &&
                 !Contains("running the job"));
  CHECK_THAT(refused({}, {"--tensors", "layer.0/attention/keys"}),  // a cache, of which nothing is recorded
             Contains("--tensors 'layer.0/attention/keys' matches no tensor") && !Contains("running the job"));
  CHECK(job.verify_prompts({}, {"--tensors", "sequence 3", "--tensors", "layer.0/*"}).code == 0);
  write_file(job.path() / "empty.jsonl", "\n");
  CHECK_THAT(refused({"infer.from=empty.jsonl"}, {}), Contains("empty.jsonl' has no prompts"));
}
