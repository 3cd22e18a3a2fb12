#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/program.h"

namespace shardrun::test {

inline constexpr const char* llama_job = R"([job]
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

/// Prompts of several lengths, more than there are slots. Some of their answers end early.
inline constexpr const char* prompts = R"({"prompt": "the ", "max_tokens": 20}
{"prompt": "a", "logprobs": true}

{"prompt": "the old man was at the", "stop": " "}
{"prompt": [1, 2, 3, 4, 5, 6, 7], "logprobs": true, "echo": true, "max_tokens": 3}
{"prompt": "e", "temperature": 0.9, "seed": 5, "logprobs": true}
)";

inline Ended generate(const JobFolder& job, std::vector<std::string> words) {
  words.insert(words.begin(), {"generate", "run", "--prompts", "prompts.jsonl", "--tokens", "9", "--temperature", "0",
                               "--set", "infer.slots=2", "--set", "infer.chunk=4", "--set", "infer.page=4"});
  return run_program(job.path(), words);
}

inline std::vector<boost::json::object> answers_of(const std::string& out) {
  std::vector<boost::json::object> answers;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    answers.push_back(boost::json::parse(line).as_object());
  }
  return answers;
}

}  // namespace shardrun::test
