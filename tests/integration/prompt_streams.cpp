// Where prompts come from and answers go: files, pipes and the command line, and what is refused.

#include <csignal>

#include "tests/integration/generation.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Contains;

TEST_CASE("a prompt that cannot be continued stops the job or is skipped", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const auto of_prompts = [&](const char* text, std::vector<std::string> words) {
    write_file(job.path() / "prompts.jsonl", text);
    return generate(job, std::move(words));
  };
  const char* const wrong = "{\"prompt\": \"a\"}\n{\"promt\": \"a\"}\n";
  const Ended refused = of_prompts(wrong, {"--ranks", "2", "--strategy", "pp"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("prompts.jsonl:2: expected either \"prompt\" or \"messages\", found neither"));
  const std::string too_long = "\n{\"prompt\": \"" + std::string(16, 'a') + "\"}";
  const Ended lacks_room = of_prompts(too_long.c_str(), {});
  CHECK(lacks_room.code == 2);
  CHECK_THAT(lacks_room.err, Contains("prompts.jsonl:2: the prompt has 16 tokens, and at most 15 leave room"));
  const Ended alone = run_program(job.path(), {"generate", "run", "--ranks", "2", "--strategy", "tp", "--prompt",
                                               std::string(16, 'a'), "--tokens", "3"});
  CHECK(alone.code == 2);
  CHECK_THAT(alone.err, Contains("--prompt: the prompt has 16 tokens, and at most 15 leave room for an answer"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "runs/generate"));
  const Ended stopped = run_script(job.path(),
                                   "cat prompts.jsonl | \"$0\" generate run --prompts - --ranks 2 "
                                   "--strategy pp --tokens 3");
  CHECK(stopped.code == 1);
  CHECK_THAT(stopped.err, Contains("standard input:2: the prompt has 16 tokens"));
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
  // Like a person who waits for each answer, the script writes the second prompt when the first answer has come.
  for (const char* const pipes : {"--prompts - < in > out", "--prompts in --to out > /dev/null"}) {
    const std::string script = R"(rm -f in out; mkfifo in out
"$0" generate run --tokens 3 --temperature 0 --ranks 2 --strategy dp )" +
                               std::string(pipes) + R"( & program=$!
exec 3> in 4< out
echo '{"prompt": "a"}' >&3; read -r first <&4
echo '{"prompt": "b"}' >&3; read -r second <&4
exec 3>&-; wait $program; echo "$? $first $second")";
    const Ended ended = run_script(job.path(), script.c_str());
    INFO(pipes << ended.err);
    CHECK_THAT(ended.out, Contains("0 {\"line\":1,") && Contains("{\"line\":2,"));
  }
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

TEST_CASE("a job that tells events and has no prompt in work ends at a signal while its input is open", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  for (const char* const split : {"--ranks 1", "--ranks 2 --strategy tp"}) {
    const std::string script = R"sh(rm -f in out; mkfifo in
"$0" generate run --prompts - --set infer.events=true )sh" +
                               std::string(split) + R"sh( < in > out & program=$!
exec 3> in
until grep -q ready out || ! kill -0 $program; do sleep 0.05; done
kill -TERM $program; wait $program; echo "$?"; exec 3>&-)sh";
    const Ended ended = run_script(job.path(), script.c_str());
    INFO(split << ended.err);
    CHECK(ended.out == "143\n");
  }
}

TEST_CASE("a job whose prompts come from a pipe that nobody writes to starts, and ends at a signal", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const Ended ended = run_script(job.path(), R"sh(mkfifo in
"$0" generate run --prompts in --set infer.events=true --ranks 1 > out & program=$!
for try in $(seq 600); do grep -q ready out && break; sleep 0.05; done
grep -c ready out; kill -TERM $program
for try in $(seq 600); do kill -0 $program 2>/dev/null || break; sleep 0.05; done
kill -KILL $program 2>/dev/null; wait $program; echo "$?")sh");
  INFO(ended.err);
  CHECK(ended.out == "1\n143\n");
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
  CHECK(run_program(job.path(), {"generate", "job.ini", "--prompt", "the ", "--tokens", "12", "--temperature", "0"})
            .out == said({"--prompt", "the ", "--temperature", "0"}).out);
  CHECK_THAT(said({"--prompt", "a", "--prompts", "x"}).err, Contains("--prompts and --prompt both say what"));
  CHECK_THAT(said({"--message", "a", "--ranks", "2"}).err, Contains("--message needs a folder"));
  CHECK(said({"--prompt", "\xff", "--ranks", "1"}).code == 2);
  CHECK_THAT(said({"--ranks", "1", "--set", "infer.batch=3"}).err, Contains("[infer] batch has no effect"));
  write_file(job.path() / "there.txt", "kept");
  CHECK_THAT(said({"--ranks", "1", "--to", "there.txt"}).err, Contains("there.txt' exists"));
  CHECK_THAT(said({"--ranks", "1", "--set", "infer.to=there.txt"}).err, Contains("there.txt' exists"));
  CHECK(read_file(job.path() / "there.txt") == "kept");
}

TEST_CASE("a file of answers that exists is replaced only if --replace says so", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  write_file(job.path() / "prompts.jsonl", "{\"prompt\": \"a\"}\n");
  const Ended made = generate(job, {"--to", "typed.jsonl"});
  INFO(made.err);
  REQUIRE(made.code == 0);
  std::string text = read_file(job.path() / "runs/generate/job.ini");
  for (const auto& [word, other] : {std::pair("typed.jsonl", "answers.jsonl"), {"runs/generate", "runs/infer"}}) {
    text.replace(text.find(word), std::string_view(word).size(), other);
  }
  write_file(job.path() / "infer.ini", text);
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"run", "infer.ini"});
    return run_program(job.path(), words);
  };
  const std::filesystem::path answers = job.path() / "answers.jsonl";
  write_file(answers, "kept");
  const Ended refused = run({});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("infer.ini:") && Contains(": [infer] to = '") &&
                              Contains("answers.jsonl' exists: choose another name, or replace it with --replace"));
  CHECK(read_file(answers) == "kept");
  const Ended first = run({"--replace"});
  INFO(first.err);
  REQUIRE(first.code == 0);
  const std::string answer = read_file(answers);
  CHECK(run({}).code == 2);  // not even its own
  CHECK(run({"--set", "infer.to=answers.jsonl"}).code == 2);
  CHECK(run({"--replace"}).code == 0);
  CHECK(read_file(answers) == answer);

  std::filesystem::remove(answers);
  const std::filesystem::path unfinished = job.path() / ".answers.jsonl.tmp";
  write_file(unfinished, answer);
  const Ended after_kill = run({});
  CHECK(after_kill.code == 2);
  CHECK_THAT(after_kill.err, Contains(".answers.jsonl.tmp' has what a run wrote until it was killed"));
  CHECK(read_file(unfinished) == answer);
  CHECK(run({"--replace"}).code == 0);
  CHECK_FALSE(std::filesystem::exists(unfinished));
}

TEST_CASE("the median step of prompts is of steps that read none", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const auto median = [&](const char* tokens) {
    write_file(job.path() / "prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    const Ended ended = run_program(job.path(), {"generate", "run", "--prompts", "prompts.jsonl", "--to", "a.jsonl",
                                                 "--replace", "--tokens", tokens, "--json"});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const boost::json::value summary = boost::json::parse(ended.out);
    CHECK(summary.at("steps") == 2);  // answers
    return summary.at("step_ms_median");
  };
  CHECK(median("1").is_null());
  CHECK(median("5").as_double() > 0);
}

TEST_CASE("a prompt that is stopped says so, and claims no results", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const Ended ended = run_script(job.path(), R"sh(mkfifo in
"$0" generate run --prompts - --tokens 3 --ranks 1 < in 2> err & program=$!
exec 3> in
until grep -q "ranks\|arena" runs/generate/log/rank-0.log 2>/dev/null || ! kill -0 $program; do sleep 0.05; done
kill -TERM $program; wait $program; echo "$?"; cat err)sh");
  CHECK_THAT(ended.out, Contains("143\n") && !Contains("results in") && !Contains("0 answers"));
  const Ended replacing = run_script(job.path(), R"sh(echo old > answers.jsonl
"$0" generate run --prompts - --to answers.jsonl --replace --tokens 3 --ranks 1 < in > out 2>&1 & program=$!
exec 3> in
until grep -q arena out || ! kill -0 $program; do sleep 0.05; done
kill -TERM $program; wait $program; echo "$?"; cat answers.jsonl; cat out)sh");
  CHECK_THAT(replacing.out, Contains("143\nold\n") && !Contains("results in"));
}

TEST_CASE("a job that fails keeps the answers that are complete", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  for (const char* const split : {"--ranks 1", "--ranks 2 --strategy pp"}) {
    const std::string script = R"sh(rm -f answers.jsonl
(for i in 1 2 3 4 5; do echo '{"prompt": "a"}'; done; echo '{"promt": "a"}') |
"$0" generate run --prompts - --to answers.jsonl --tokens 3 --set infer.slots=1 )sh" +
                               std::string(split) + R"sh( > out; echo "$?"; cat answers.jsonl)sh";
    const Ended ended = run_script(job.path(), script);
    INFO(split << ended.err);
    CHECK_THAT(ended.out, Catch::StartsWith("1\n{\"line\":1,") && Contains("\n{\"line\":2,"));
    CHECK_THAT(ended.err, Contains("standard input:6: "));
    CHECK_THAT(read_file(job.path() / "out"), Contains(" answers before the failure, in answers.jsonl\n"));
  }
}

TEST_CASE("a job of which a rank is killed keeps the answers that are complete", "[generate]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const Ended ended = run_script(job.path(), R"sh(mkfifo in
"$0" generate run --prompts - --to answers.jsonl --tokens 3 --ranks 2 --strategy pp < in > out & program=$!
exec 3> in; echo '{"prompt": "a"}' >&3
until [ -n "$(find . -name '*answers.jsonl*' -size +0)" ] || ! kill -0 $program; do sleep 0.05; done
set -- $(cat /proc/$program/task/$program/children); kill -KILL $2
wait $program; echo "$?"; cat answers.jsonl)sh");
  INFO(ended.err);
  CHECK_THAT(ended.out, Contains("1\n{\"line\":1,"));
  CHECK_THAT(ended.err, Contains("rank 1 (pid ") && Contains("was killed by signal 9"));
}

TEST_CASE("weights beside the job of a later run are applied as their own model", "[generate]") {
  const JobFolder job;
  write_file(job.path() / "prompts.jsonl", "{\"prompt\": \"the \", \"logprobs\": true}\n");
  REQUIRE(job.run({"model.heads=2", "train.steps=5"}).code == 0);
  const Ended before = generate(job, {});
  REQUIRE(before.code == 0);
  bool killed = false;
  run_program(job.path(), with_settings({"job.ini"}, {"model.heads=1", "train.steps=1000000", "train.log_every=1"}),
              [&](pid_t process, std::string_view out) {
                if (!killed && out.find("step 2/") != std::string_view::npos) {
                  killed = ::kill(process, SIGKILL) == 0;
                }
              });
  REQUIRE(killed);
  REQUIRE_THAT(read_file(job.path() / "run/job.ini"), Contains("\nheads = 1\n"));

  CHECK(generate(job, {}).out == before.out);
}
