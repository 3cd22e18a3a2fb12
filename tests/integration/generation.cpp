// Prompts that are continued: the same answers under each strategy, in the order of the prompts.

#include <cmath>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Contains;

namespace {

constexpr const char* llama_job = R"([job]
output = run
threads = 1
[model]
name = llama
layers = 3
heads = 6
kv_heads = 2
width = 24
hidden = 32
context = 32
[data]
text = corpus.txt
batch = 4
[train]
steps = 20
learning_rate = 0.02
warmup = 0
)";

/// A model whose matrices have rows of whole blocks, on each of up to 3 ranks.
constexpr const char* narrow_job = R"([job]
output = run
threads = 1
[model]
name = llama
layers = 2
heads = 6
kv_heads = 2
head_dim = 32
width = 64
hidden = 192
context = 32
tied = true
[data]
text = corpus.txt
batch = 4
[train]
steps = 20
learning_rate = 0.01
warmup = 0
)";

/// Prompts of several lengths, more than the slots, some of which end early.
constexpr const char* prompts = R"({"prompt": "the ", "max_tokens": 20}
{"prompt": "a", "logprobs": true}

{"prompt": "the old man was at the", "stop": " "}
{"prompt": [1, 2, 3, 4, 5, 6, 7], "logprobs": true, "echo": true, "max_tokens": 3}
{"prompt": "e", "temperature": 0.9, "seed": 5, "logprobs": true}
)";

Ended generate(const JobFolder& job, std::vector<std::string> words) {
  words.insert(words.begin(), {"generate", "run", "--prompts", "prompts.jsonl", "--tokens", "9", "--temperature", "0",
                               "--set", "infer.slots=2", "--set", "infer.chunk=4", "--set", "infer.page=4"});
  return run_program(job.path(), words);
}

std::vector<boost::json::object> answers_of(const std::string& out) {
  std::vector<boost::json::object> answers;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    answers.push_back(boost::json::parse(line).as_object());
  }
  return answers;
}

/// Whether answers have the same tokens, with nearly the same probabilities.
void check_alike(const std::vector<boost::json::object>& answers, const std::vector<boost::json::object>& expected,
                 double tolerance = 1e-4) {
  REQUIRE(answers.size() == expected.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    CAPTURE(i);
    for (const auto& [key, value] : expected[i]) {
      if (key != "logprobs") {
        CHECK(answers[i].at(key) == value);
        continue;
      }
      const boost::json::array& found = answers[i].at(key).as_array();
      REQUIRE(found.size() == value.as_array().size());
      for (std::size_t n = 0; n < found.size(); ++n) {
        CHECK(std::abs(found[n].as_double() - value.as_array()[n].as_double()) < tolerance);
      }
    }
  }
}

/// The largest difference between logarithms of probabilities, up to where the tokens of answers differ.
double largest_difference(const std::vector<boost::json::object>& answers,
                          const std::vector<boost::json::object>& others) {
  double largest = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const boost::json::value* const logprobs = answers[i].if_contains("logprobs");
    for (std::size_t n = 0; logprobs != nullptr && n < logprobs->as_array().size(); ++n) {
      if (answers[i].at("tokens").at(n) != others.at(i).at("tokens").at(n)) {
        break;
      }
      largest =
          std::max(largest, std::abs(logprobs->at(n).as_double() - others.at(i).at("logprobs").at(n).as_double()));
    }
  }
  return largest;
}

}  // namespace

TEST_CASE("prompts have the same answers under each strategy", "[generate]") {
  for (const bool is_llama : {true, false}) {
    CAPTURE(is_llama);
    const JobFolder job;
    if (is_llama) {
      write_file(job.path() / "job.ini", llama_job);
    }
    write_file(job.path() / "prompts.jsonl", prompts);
    REQUIRE(job.run({"model.context=32"}).code == 0);
    const Ended one = generate(job, {});
    INFO(one.err);
    REQUIRE(one.code == 0);
    const std::vector<boost::json::object> expected = answers_of(one.out);
    REQUIRE(expected.size() == 5);
    CHECK(expected[0].at("tokens").as_array().size() == 20);
    CHECK(expected[0].at("finish_reason") == "length");
    CHECK(expected[1].at("logprobs").as_array().size() == 9);
    CHECK(expected[3].at("tokens").as_array().size() == 3);
    CHECK_THAT(one.err, Contains("5 answers"));
    std::vector<std::vector<std::string>> splits = {{"--ranks", "2", "--strategy", "tp"},
                                                    {"--ranks", "2", "--strategy", "pp"},
                                                    {"--ranks", "3", "--strategy", "zero3"},
                                                    {"--ranks", "auto", "--strategy", "3d", "--set", "mesh.data=2",
                                                     "--set", "mesh.model=2", "--set", "mesh.pipe=2"}};
    if (is_llama) {  // 6 heads over 2 heads of keys: uneven groups
      splits.push_back({"--ranks", "4", "--strategy", "tp"});
      splits.push_back({"--ranks", "3", "--strategy", "pp", "--transport", "gloo"});
    }
    for (const std::vector<std::string>& split : splits) {
      CAPTURE(split);
      const Ended ended = generate(job, split);
      INFO(ended.err);
      REQUIRE(ended.code == 0);
      check_alike(answers_of(ended.out), expected);
    }
  }
}

TEST_CASE("weights in fewer bits give the same answers under each strategy, near those of float32", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", narrow_job);
  write_file(job.path() / "prompts.jsonl", prompts);
  REQUIRE(job.run().code == 0);
  const std::vector<boost::json::object> exact = answers_of(generate(job, {}).out);
  // int8: a product rounds activations, so a last bit that differs may change an integer by one.
  struct Narrow {
    const char* type;
    double most;       ///< difference from float32
    double tolerance;  ///< between strategies
  };
  for (const auto& [type, most, tolerance] :
       {Narrow{"bfloat16", 0.05, 1e-4}, Narrow{"float16", 0.01, 1e-4}, Narrow{"int8", 0.2, 0.02}}) {
    CAPTURE(type);
    const Ended one = generate(job, {"--weights", type});
    INFO(one.err);
    REQUIRE(one.code == 0);
    const std::vector<boost::json::object> expected = answers_of(one.out);
    const double distance = largest_difference(expected, exact);
    CHECK(distance < most);
    CHECK(distance > 1e-5);  // the weights have been rounded
    const std::vector<std::vector<std::string>> splits = {{"--ranks", "2", "--strategy", "tp"},
                                                          {"--ranks", "3", "--strategy", "tp"},
                                                          {"--ranks", "4", "--strategy", "tp"},  // rows of 48 a rank
                                                          {"--ranks", "2", "--strategy", "pp"},
                                                          {"--ranks", "2", "--strategy", "zero3"}};
    for (std::vector<std::string> split : splits) {
      CAPTURE(split);
      split.insert(split.end(), {"--weights", type});
      const Ended ended = generate(job, split);
      INFO(ended.err);
      REQUIRE(ended.code == 0);
      check_alike(answers_of(ended.out), expected, tolerance);
    }
  }
}

TEST_CASE("a prompt that cannot be continued stops the job or is skipped", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const auto of_prompts = [&](const char* text, std::vector<std::string> words) {
    write_file(job.path() / "prompts.jsonl", text);
    return generate(job, std::move(words));
  };
  const Ended stopped = of_prompts("{\"prompt\": \"a\"}\n{\"promt\": \"a\"}\n", {"--ranks", "2", "--strategy", "pp"});
  CHECK(stopped.code == 1);
  CHECK_THAT(stopped.err, Contains("prompts.jsonl:2: expected either \"prompt\" or \"messages\", found neither"));
  const std::string long_prompt = "{\"prompt\": \"" + std::string(500, 'a') + "\"}\n{\"prompt\": \"a\"}";
  const Ended skipped = of_prompts(long_prompt.c_str(), {"--set", "infer.malformed=skip"});
  CHECK(skipped.code == 0);
  CHECK(answers_of(skipped.out).size() == 1);
  CHECK_THAT(skipped.err, Contains("prompts.jsonl:1: the prompt has 500 tokens, and at most 15 leave room") &&
                              Contains("1 malformed and skipped"));
}

TEST_CASE("each prompt is answered before the next is given", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  // A person or program that waits for each answer: the second prompt is written when the first answer has come.
  const char* const script = R"(mkfifo in out
"$0" generate run --prompts - --tokens 3 --temperature 0 --ranks 2 --strategy dp < in > out & program=$!
exec 3> in 4< out
echo '{"prompt": "a"}' >&3; read -r first <&4
echo '{"prompt": "b"}' >&3; read -r second <&4
exec 3>&-; wait $program; echo "$? $first $second")";
  const Ended ended = run_script(job.path(), script);
  INFO(ended.err);
  CHECK_THAT(ended.out, Contains("0 {\"line\":1,") && Contains("{\"line\":2,"));
}

TEST_CASE("an interrupted job keeps the answers that are complete", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const char* const script = R"sh(mkfifo in
"$0" generate run --prompts - --to answers.jsonl --tokens 3 --ranks 2 --strategy pp < in & program=$!
exec 3> in; echo '{"prompt": "a"}' >&3
until [ -n "$(find . -name '*answers.jsonl*' -size +0)" ] || ! kill -0 $program; do sleep 0.05; done
kill -TERM $program; wait $program; echo "$?"; cat answers.jsonl)sh";
  const Ended ended = run_script(job.path(), script);
  INFO(ended.err);
  CHECK_THAT(ended.out, Contains("143\n{\"line\":1,"));
}

TEST_CASE("prompts on the command line have the same answers in one process and as a job", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"model.context=32", "train.steps=5"}).code == 0);
  const auto said = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", "run", "--tokens", "12"});
    return run_program(job.path(), words);
  };
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {}, {"--prompt", "the ", "--temperature", "0"}, {"--prompt", "the ", "--top-p", "0.9", "--min-p", "0.01"}}) {
    std::vector<std::string> split = words;
    split.insert(split.end(), {"--ranks", "2", "--strategy", "tp"});
    CHECK(said(words).out == said(split).out);
  }
  CHECK_THAT(said({"--prompt", "a", "--prompts", "x"}).err, Contains("--prompts and --prompt both say what"));
  CHECK_THAT(said({"--message", "a", "--ranks", "2"}).err, Contains("--message needs a folder"));
  CHECK(said({"--prompt", "\xff", "--ranks", "1"}).code == 2);
  CHECK_THAT(said({"--ranks", "1", "--set", "infer.batch=3"}).err, Contains("[infer] batch has no effect"));
  write_file(job.path() / "there.txt", "kept");
  CHECK_THAT(said({"--ranks", "1", "--to", "there.txt"}).err, Contains("there.txt' exists"));
  CHECK(read_file(job.path() / "there.txt") == "kept");
}

TEST_CASE("a plan says what caches need, for the heads of keys that a rank has", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "infer.ini",
             "[job]\ntask = infer\nstrategy = tp\nranks = 4\n"
             "[model]\nname = llama\nlayers = 3\nheads = 6\nkv_heads = 2\nwidth = 24\nhidden = 32\ncontext = 32\n"
             "vocab = 50\n[infer]\nfrom = prompts.jsonl\nto = answers.jsonl\ntokens = 9\nslots = 2\npage = 8\n");
  const Ended plan = run_program(job.path(), {"plan", "infer.ini"});
  INFO(plan.err);
  REQUIRE(plan.code == 0);
  CHECK_THAT(plan.out, Contains("a prompt and its answer have at most 32 tokens"));
  // 2 heads of keys and values in 3 layers, 8 pages of 8 tokens, 4 floats: rank 1 reads both heads.
  CHECK_THAT(plan.out, Contains("caches                     12288   12.0 KiB on the rank with the most, 192 B a token: "
                                "8 pages of 8 tokens"));
  const Ended narrow = run_program(job.path(), {"plan", "infer.ini", "--set", "infer.cache=bfloat16"});
  CHECK_THAT(narrow.out, Contains("caches                      6144 "));
  const Ended long_context = run_program(job.path(), {"plan", "infer.ini", "--set", "infer.context=33"});
  CHECK(long_context.code == 2);
  CHECK_THAT(long_context.err, Contains("[infer] context = 33 is more than the model's context of 32"));
}
