// Continuing prompts. The answers are the same under each strategy, and come in the order of the prompts.

#include "tests/integration/generation.h"

#include <cmath>
#include <map>

#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Contains;

namespace {

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

/// Checks that answers have the same tokens, with nearly the same probabilities.
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

TEST_CASE("with [infer] invariant = ranks, answers have the same bits under each strategy", "[generate]") {
  const std::vector<std::string> invariant = {"--set", "infer.invariant=ranks"};
  for (const auto& [text, type] : std::vector<std::pair<const char*, const char*>>{
           {llama_job, "float32"}, {nullptr, "float32"}, {narrow_job, "bfloat16"}, {narrow_job, "int8"}}) {
    CAPTURE(text, type);
    const JobFolder job;
    if (text != nullptr) {
      write_file(job.path() / "job.ini", text);
    }
    write_file(job.path() / "prompts.jsonl", prompts);
    REQUIRE(job.run({"model.context=32"}).code == 0);
    const auto answer = [&](std::vector<std::string> words) {
      words.insert(words.end(), {"--weights", type});
      const Ended ended = generate(job, words);
      INFO(ended.err);
      REQUIRE(ended.code == 0);
      return ended.out;
    };
    const std::string one = answer(invariant);
    CHECK(answers_of(one).at(1).at("logprobs").as_array().size() == 9);
    // Sums that are split over ranks round otherwise.
    CHECK(answer({"--ranks", "2", "--strategy", "tp"}) != one);
    for (std::vector<std::string> split : std::vector<std::vector<std::string>>{
             {"--ranks", "2", "--strategy", "tp", "--set", "job.threads=2"},
             {"--ranks", "4", "--strategy", "tp"},  // uneven groups of heads
             {"--ranks", "2", "--strategy", "pp"},
             {"--ranks", "3", "--strategy", "zero3", "--transport", "tcp"},
             {"--ranks", "auto", "--strategy", "3d", "--set", "mesh.data=2", "--set", "mesh.model=2"}}) {
      CAPTURE(split);
      split.insert(split.end(), invariant.begin(), invariant.end());
      CHECK(answer(split) == one);
    }
  }
}

TEST_CASE("generate --json prints an answer and how long it took", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", llama_job);
  REQUIRE(job.run({}).code == 0);
  for (const std::vector<std::string>& split :
       {std::vector<std::string>{"--ranks", "1"}, {"--ranks", "2", "--strategy", "tp"}}) {
    std::vector<std::string> words = {"generate", "run",           "--prompt", "the ",  "--tokens",
                                      "5",        "--temperature", "0",        "--json"};
    words.insert(words.end(), split.begin(), split.end());
    const Ended ended = run_program(job.path(), words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const boost::json::object answer = answers_of(ended.out).at(0);
    CHECK(answer.at("prompt_tokens") == 4);
    CHECK(answer.at("tokens").as_array().size() == 5);
    for (const char* key : {"first_token_s", "prefill_tokens_per_s", "decode_tokens_per_s"}) {
      CHECK(answer.at(key).as_double() > 0);
    }
  }
}

TEST_CASE("tokens that were drawn have the same probabilities as part of a prompt", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", llama_job);
  REQUIRE(job.run({}).code == 0);
  write_file(job.path() / "prompts.jsonl", R"({"prompt": [1, 2, 3, 4, 5, 6, 7], "logprobs": true})");
  const Ended drawn = generate(job, {});
  INFO(drawn.err);
  REQUIRE(drawn.code == 0);
  const boost::json::object answer = answers_of(drawn.out).at(0);
  boost::json::array tokens = {1, 2, 3, 4, 5, 6, 7};
  std::ranges::copy(answer.at("tokens").as_array(), std::back_inserter(tokens));
  const boost::json::object scored = {{"prompt", tokens}, {"prompt_logprobs", 7}, {"max_tokens", 0}};
  write_file(job.path() / "prompts.jsonl", boost::json::serialize(scored));
  CHECK_THAT(generate(job, {}).err, Contains("set [infer] prompt_logprobs = true"));
  for (const std::vector<std::string>& split : {std::vector<std::string>{"--ranks", "1"},
                                                {"--ranks", "2", "--strategy", "tp"},
                                                {"--ranks", "2", "--strategy", "dp"},
                                                {"--ranks", "3", "--strategy", "pp"},
                                                {"--ranks", "2", "--strategy", "zero3"}}) {
    CAPTURE(split);
    std::vector<std::string> words = {"--set", "infer.prompt_logprobs=true"};
    words.insert(words.end(), split.begin(), split.end());
    const Ended ended = generate(job, words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const boost::json::object read = answers_of(ended.out).at(0);
    CHECK(read.at("tokens").as_array().empty());
    check_alike({{{"logprobs", read.at("prompt_logprobs")}}}, {{{"logprobs", answer.at("logprobs")}}});
  }
}

TEST_CASE("a model is evaluated by a text and by questions", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", llama_job);
  REQUIRE(job.run({"train.steps=200"}).code == 0);
  const auto evaluate = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"evaluate", "run", "--json"});
    const Ended ended = run_program(job.path(), words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return boost::json::parse(ended.out).as_object();
  };
  write_file(job.path() / "part.txt", read_file(job.path() / "corpus.txt").substr(0, 300));
  const boost::json::object one = evaluate({"--text", "part.txt"});
  CHECK(one.at("tokens") == 300);
  CHECK(one.at("scored") == 299);
  CHECK(one.at("windows") == 18);  // 32 tokens, then 16 more in each
  const boost::json::object two = evaluate({"--text", "part.txt", "--ranks", "2", "--strategy", "tp"});
  CHECK(std::abs(two.at("log_likelihood").as_double() / one.at("log_likelihood").as_double() - 1) < 1e-5);
  CHECK(evaluate({"--text", "part.txt", "--stride", "31"}).at("windows") == 10);
  write_file(job.path() / "questions.jsonl",
             R"({"context": "the cat sat on a mat and the", "choices": ["bbb", "cat"], "answer": 1}
{"context": "the cat sat on a mat and the", "choices": ["lll", "bird"], "answer": "lll"}
)");
  const boost::json::object chosen = evaluate({"--choices", "questions.jsonl", "--scores", "chosen.jsonl"});
  CHECK(chosen.at("questions") == 2);
  CHECK(chosen.at("accuracy") == 0.5);
  CHECK(answers_of(read_file(job.path() / "chosen.jsonl")).at(1).at("choice") == 1);
}

TEST_CASE("an evaluation that cannot be made is refused before anything starts", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", llama_job);
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const auto refused = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"evaluate", "run"});
    const Ended ended = run_program(job.path(), words);
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK_THAT(refused({}), Contains("expected one of --text and --choices, found neither"));
  CHECK_THAT(refused({"--text", "corpus.txt", "--context", "33"}), Contains("--context"));
  CHECK_THAT(refused({"--text", "corpus.txt", "--delimiter", "x"}), Contains("no effect without --choices"));
  write_file(job.path() / "questions.jsonl", "\n{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 0}\n");
  CHECK_THAT(refused({"--choices", "questions.jsonl"}), Contains("questions.jsonl:2: \"choices\": expected a list"));
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

TEST_CASE("activations in bfloat16 give nearly the same answers, with the same bits however they are computed",
          "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", narrow_job);
  write_file(job.path() / "prompts.jsonl", prompts);
  REQUIRE(job.run().code == 0);
  const auto answer = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--weights", "bfloat16"});
    const Ended ended = generate(job, words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return ended.out;
  };
  const std::vector<std::string> rounds = {"--activations", "bfloat16", "--set", "infer.invariant=ranks"};
  const std::string one = answer(rounds);
  const double distance = largest_difference(answers_of(one), answers_of(answer({"--activations", "float32"})));
  CHECK(distance < 0.05);
  CHECK(distance > 1e-5);  // the activations have been rounded
  // pp computes the slots in two groups, in a call each.
  for (std::vector<std::string> split : std::vector<std::vector<std::string>>{
           {"--threads", "2"}, {"--ranks", "2", "--strategy", "tp"}, {"--ranks", "2", "--strategy", "pp"}}) {
    CAPTURE(split);
    split.insert(split.end(), rounds.begin(), rounds.end());
    CHECK(answer(split) == one);
  }
  for (const char* const type : {"float32", "float16", "int8"}) {
    const Ended refused = generate(job, {"--weights", type, "--activations", "bfloat16"});
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, Contains("--activations: [infer] activations: bfloat16 has no effect with matrices in "));
  }
}

TEST_CASE("a plan says what caches need, for the heads of keys that a rank has", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
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
  const auto first_token = [&](const char* chunk) {
    const Ended predicted =
        run_program(job.path(), {"plan", "infer.ini", "--json", "--set", "cluster.flops=1e9", "--set",
                                 "cluster.memory_bandwidth=1e12", "--set", "cluster.bandwidth=1e12", "--set", chunk});
    INFO(predicted.err);
    REQUIRE(predicted.code == 0);
    return boost::json::parse(predicted.out).at_pointer("/predicted/prefill_chunk_s").as_double();
  };
  const double ratio = first_token("infer.chunk=32") / first_token("infer.chunk=8");
  CHECK(ratio > 2.5);  // logits are computed for one token of a chunk
  CHECK(ratio < 4);
  const boost::json::value slots = boost::json::parse(run_program(job.path(), {"plan", "infer.ini", "--json"}).out);
  CHECK(boost::json::serialize(slots.at("slots")) == R"({"slots":2,"groups":1,"context":32,"pages":8,"page":8})");
  const std::vector<std::string> stages = {"plan", "infer.ini", "--set", "job.strategy=pp", "--set", "job.ranks=3"};
  CHECK_THAT(run_program(job.path(), stages).out,
             Contains("a step is a token of 1 of 2 prompts: stages work at 2 groups of them at once; "));
  std::vector<std::string> predicting = stages;
  predicting.insert(predicting.end(), {"--json", "--set", "cluster.flops=1e9", "--set", "cluster.memory_bandwidth=1e12",
                                       "--set", "cluster.bandwidth=1e12"});
  const boost::json::value three = boost::json::parse(run_program(job.path(), predicting).out).at("predicted");
  CHECK(three.at("tokens_per_s").as_double() * three.at("step_s").as_double() == Approx(2));  // two groups at once
  const std::vector<std::string> more = {"plan", "infer.ini", "--json", "--set", "infer.slots=9"};
  CHECK(boost::json::parse(run_program(job.path(), more).out).at_pointer("/slots/slots") == 2);  // the file has two
  const Ended missing = run_program(job.path(), {"plan", "infer.ini", "--set", "infer.from=none.jsonl"});
  CHECK(missing.code == 2);
  CHECK(missing.out.empty());
  CHECK_THAT(missing.err, Contains("[infer] from = ") && Contains("none.jsonl: it cannot be read: No such file"));
  const Ended long_context = run_program(job.path(), {"plan", "infer.ini", "--set", "infer.context=33"});
  CHECK(long_context.code == 2);
  CHECK_THAT(long_context.err, Contains("[infer] context = 33 is more than the model's context of 32"));
}

TEST_CASE("ranks that continue prompts send in each call of each program what the plan says", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", llama_job);
  write_file(job.path() / "prompts.jsonl", R"({"prompt": "the old man", "max_tokens": 4}
{"prompt": "the old man was", "prompt_logprobs": true, "max_tokens": 2}
{"prompt": "a", "max_tokens": 5}
)");
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  using Words = std::vector<std::string>;
  for (const Words& split :
       std::vector<Words>{{"--ranks", "1"},
                          {"--ranks", "2", "--strategy", "tp"},
                          {"--ranks", "3", "--strategy", "tp"},
                          {"--ranks", "5", "--strategy", "tp"},  // uneven groups of heads
                          {"--ranks", "6", "--strategy", "tp"},
                          {"--ranks", "2", "--strategy", "pp"},
                          {"--ranks", "3", "--strategy", "pp"},
                          {"--ranks", "2", "--strategy", "zero3"},
                          {"--ranks", "4", "--strategy", "zero3"},
                          {"--ranks", "8", "--strategy", "3d", "--set", "mesh.data=2", "--set", "mesh.model=2", "--set",
                           "mesh.pipe=2"},
                          {"--ranks", "2", "--strategy", "named", "--set", "sharding.heads=ranks"}}) {
    CAPTURE(split);
    Words words = split;
    words.insert(words.end(), {"--set", "infer.prompt_logprobs=true"});
    const Ended ended = generate(job, words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const std::filesystem::path run = job.path() / "runs/generate";
    const boost::json::object summary = read_json(run / "summary.json");
    const Ended planned = run_program(job.path(), {"plan", (run / "job.ini").string(), "--json"});
    INFO(planned.err);
    REQUIRE(planned.code == 0);
    const boost::json::array& ranks = summary.at("ranks").as_array();
    const boost::json::object& first = ranks.at(0).at("programs").as_object();
    REQUIRE(first.size() == 3);
    // A token behind each prompt comes of its last chunk. Two of the answers may be in one call.
    CHECK(first.at("decode").at("calls").as_int64() >= 4);
    CHECK(first.at("decode").at("calls").as_int64() <= 3 + 1 + 4);
    CHECK(first.at("prefill").at("calls") == 3 + 1);  // of 11 and 1 tokens; a scored prompt has none
    CHECK(first.at("score").at("calls") == 4);
    std::size_t that_send = 0;
    const boost::json::value plan = boost::json::parse(planned.out);
    for (const boost::json::value& alike : plan.at("ranks").as_array()) {
      for (const boost::json::value& member : alike.at("members").as_array()) {
        const boost::json::object& rank = ranks.at(member.to_number<std::size_t>()).as_object();
        CHECK(rank.at("planned_bytes") == alike.at("bytes").at("peak"));
        CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
        CHECK(rank.at("sent_bytes") == alike.at("sent_bytes"));
        for (const auto& [name, program] : alike.at("programs").as_object()) {
          const boost::json::value& called = rank.at("programs").at(name);
          CAPTURE(name);
          CHECK(called.at("sent_bytes") == program.at("sent_bytes"));
          CHECK(called.at("calls") == first.at(name).at("calls"));
          that_send += called.at("sent_bytes").as_object().empty() ? 0 : 1;
        }
        CHECK(rank.at("sent_bytes") == rank.at("programs").at("decode").at("sent_bytes"));
      }
    }
    CHECK(that_send == (ranks.size() == 1 ? 0 : 3 * ranks.size()));
  }
}

TEST_CASE("ranks of which one draws another token end at once, also if that ends the answer on some of them",
          "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", llama_job);
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  // The first token is drawn from the logits of the only chunk of the prompt, which the ranks gather.
  const auto prompt = [&](int seed, const std::string& rest) {
    write_file(job.path() / "prompts.jsonl",
               "{\"prompt\": \"the\", \"temperature\": 1, \"seed\": " + std::to_string(seed) + rest + "}\n");
  };
  const auto flipped = [&](int op) {
    return run_program(
        job.path(), {"generate", "run", "--prompts", "prompts.jsonl", "--ranks", "3", "--strategy", "tp", "--transport",
                     "chaos", "--set", "transport.chaos.rank=2", "--set", "transport.chaos.corrupt=true", "--set",
                     "transport.chaos.at_op=" + std::to_string(op), "--set", "job.timeout=20"});
  };
  prompt(0, ", \"max_tokens\": 1");
  int op = 4;  // behind those by which ranks agree that there is a prompt
  while (op < 40 && flipped(op).err.find("'all_gather of logits'") == std::string::npos) {
    ++op;
  }
  for (int seed = 1; seed < 60; ++seed) {
    CAPTURE(seed, op);
    prompt(seed, ", \"max_tokens\": 1");
    const Ended first = run_program(job.path(), {"generate", "run", "--prompts", "prompts.jsonl", "--ranks", "1"});
    INFO(first.err);
    REQUIRE(first.code == 0);
    prompt(seed, ", \"max_tokens\": 6, \"stop\": " + boost::json::serialize(answers_of(first.out).at(0).at("text")));
    const Ended ended = flipped(op);
    if (ended.code != 0) {
      CHECK_THAT(ended.err, Contains("this rank has drawn other tokens than another rank"));
      return;
    }
  }
  FAIL("no flipped bit has changed a token");
}

TEST_CASE("slots = auto takes as many as [cluster] memory has room for", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", llama_job);
  std::string many;
  for (int i = 0; i < 70; ++i) {
    many += "{\"prompt\": \"a\"}\n";
  }
  write_file(job.path() / "prompts.jsonl", many);
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const auto run = [&](const std::string& slots, const std::string& memory) {
    std::vector<std::string> words = {"generate",   "run",
                                      "--prompts",  "prompts.jsonl",
                                      "--tokens",   "9",
                                      "--ranks",    "2",
                                      "--strategy", "pp",
                                      "--set",      "infer.page=4",
                                      "--set",      "infer.events=true",
                                      "--set",      "infer.slots=" + slots};
    if (!memory.empty()) {
      words.insert(words.end(), {"--set", "cluster.memory=" + memory});
    }
    return run_program(job.path(), words);
  };
  struct Made {
    std::int64_t slots = 0;
    std::int64_t bytes = 0;  // of the rank that needs the most
  };
  const auto made = [&](const std::string& slots, const std::string& memory) {
    const Ended ended = run(slots, memory);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    Made found{.slots = answers_of(ended.out).at(0).at("ready").at("slots").as_int64()};
    if (slots == "auto") {
      CHECK_THAT(ended.err, Contains("slots = auto: " + std::to_string(found.slots) + " prompts at once"));
    }
    const boost::json::object summary = read_json(job.path() / "runs" / "generate" / "summary.json");
    for (const boost::json::value& rank : summary.at("ranks").as_array()) {
      CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
      found.bytes = std::max(found.bytes, rank.at("planned_bytes").to_number<std::int64_t>());
    }
    return found;
  };
  const Made five = made("5", "");
  const Made chosen = made("auto", std::to_string(five.bytes));
  CHECK(chosen.slots >= 5);
  CHECK(chosen.slots < 64);
  CHECK(chosen.bytes <= five.bytes);
  CHECK(made(std::to_string(chosen.slots + 1), "").bytes > five.bytes);
  CHECK(made("auto", "1GiB").slots == 64);
  write_file(job.path() / "prompts.jsonl", prompts);
  CHECK(made("auto", "1GiB").slots == 5);  // as many as prompts
  CHECK(made("7", "").slots == 5);
  const Ended full = run("auto", "4096");
  CHECK(full.code == 2);
  CHECK_THAT(full.err, Contains("[infer] slots = auto: with one slot of 32 tokens a rank needs ") &&
                           Contains("[cluster] memory is 4.00 KiB (4096 bytes)"));
  const Ended unknown = run("auto", "");
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("the job does not say how much memory a rank has"));
  std::string text = read_file(job.path() / "runs/generate/job.ini");
  text.erase(text.find("threads = 1\n"), std::string_view("threads = 1\n").size());
  write_file(job.path() / "machines.ini", text);
  const Ended machines = run_program(job.path(), {"plan", "machines.ini", "--set", "infer.slots=auto", "--set",
                                                  "cluster.memory=1GiB", "--set", "cluster.ranks_per_machine=1"});
  CHECK(machines.code == 2);
  CHECK_THAT(machines.err, Contains("set [job] threads, or slots to a number"));
}

TEST_CASE("a context above the model's is refused with both numbers", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "job.ini", llama_job);
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const auto told = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", "run", "--prompt", "the ", "--temperature", "0", "--tokens", "40"});
    return run_program(job.path(), words);
  };
  const Ended short_context = told({"--context", "12", "--json"});
  INFO(short_context.err);
  REQUIRE(short_context.code == 0);
  const boost::json::object answer = answers_of(short_context.out).at(0);
  CHECK(answer.at("prompt_tokens").as_int64() + std::ssize(answer.at("tokens").as_array()) == 12);
  CHECK(answer.at("finish_reason") == "length");
  const Ended given = told({"--context", "33"});
  CHECK(given.code == 2);
  CHECK_THAT(given.err, Contains("[infer] context = 33 is more than the model's context of 32"));
  const Ended set = told({"--set", "model.context=33"});
  CHECK(set.code == 2);
  CHECK_THAT(set.err, Contains("a context of 33 is more than the 32 tokens that the model knows"));
}

TEST_CASE("events tell answers as they come, cancel prompts and outlive malformed lines", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1", "model.context=64"}).code == 0);
  write_file(job.path() / "prompts.jsonl", R"({"prompt": "a", "id": "x", "max_tokens": 3}
{"prompt": "the ", "id": 77, "max_tokens": 50}
{"prompt": "a", "id": 77}
{"promt": "a", "id": "z"}
{"cancel": 8}
{"cancel": 77}
{"prompt": ")" + std::string(70, 'a') + R"("}
)" + std::string(17 << 20, 'x') + R"(
{"prompt": "b", "max_tokens": 2}
)");
  const auto told = [&](std::vector<std::string> split) {
    split.insert(split.end(), {"--set", "infer.events=true"});
    const Ended ended = generate(job, split);
    INFO(ended.err);
    CHECK(ended.code == 0);
    return answers_of(ended.out);
  };
  const std::vector<boost::json::object> events = told({"--ranks", "2", "--strategy", "tp"});
  CHECK(events == told({"--ranks", "1"}));
  REQUIRE(events.size() > 6);
  CHECK(events[0] == boost::json::parse(R"({"ready":{"context":64,"vocabulary":)" +
                                        boost::json::serialize(events[0].at("ready").at("vocabulary")) +
                                        R"(,"slots":2,"prompt_logprobs":false}})"));
  std::map<std::string, std::vector<boost::json::object>> of;
  for (const boost::json::object& event : events) {
    if (event.contains("id")) {
      of[boost::json::serialize(event.at("id"))].push_back(event);
    }
  }
  const auto code = [](const boost::json::object& event) { return event.at("error").at("code").as_string(); };
  CHECK(of.at("\"x\"").back().at("finish_reason") == "length");
  CHECK(of.at("\"x\"").back().at("answer_tokens") == 3);
  REQUIRE(of.at("77").size() >= 2);
  CHECK(code(of.at("77").front()) == "duplicate_id");
  CHECK(of.at("77").back().at("finish_reason") == "cancelled");
  CHECK(code(of.at("\"z\"").front()) == "malformed");
  CHECK(code(of.at("7").front()) == "context_length_exceeded");  // the number of its line
  CHECK(code(of.at("null").back()) == "malformed");
  CHECK_THAT(std::string(of.at("null").back().at("error").at("message").as_string()), Contains("more than 16777216"));
  CHECK(of.at("9").back().at("finish_reason") == "length");
}
