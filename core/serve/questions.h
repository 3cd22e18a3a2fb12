#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/infer/prompts.h"

namespace shardrun::serve {

// This header reads requests of OpenAI's interface, as clients send them.

/// The model, as requests see it.
struct ServedModel {
  std::string name;
  const infer::Language* language = nullptr;
  std::int64_t context = 0;      ///< the most tokens of a prompt and its answer
  std::int64_t vocabulary = 0;   ///< the number of the model's tokens
  bool scores_prompts = false;   ///< whether prompts can have logprobs
  std::size_t most_prompts = 0;  ///< most prompts of a request, each counted once for each of its answers
};

/// Why a request is refused. Functions of this folder throw it.
struct Refusal {
  int status = 400;
  std::string message;
  std::string param = {};  ///< the field of the request
  std::string code = {};
};

/// A request for chat completions or completions, checked.
struct Question {
  bool is_chat = false;
  bool streams = false;
  bool includes_usage = false;  ///< whether a stream ends with the numbers of tokens
  bool logprobs = false;
  bool echoes = false;                             ///< whether prompts, with the logprobs asked for, precede answers
  std::int64_t n = 1;                              ///< the number of answers to each prompt
  std::vector<std::vector<std::int32_t>> prompts;  ///< the tokens of each prompt
  std::vector<std::string> echoed = {};            ///< the text of each prompt, if `echoes`
  boost::json::object settings = {};               ///< keys for the line of a prompt (infer::read_prompt())
  std::vector<std::string> unknown = {};           ///< fields that have no effect
};

/// Reads the body of a request. Throws Refusal.
[[nodiscard]] Question read_question(bool is_chat, std::string_view body, const ServedModel& model);

/// The line that asks the job for one answer, without an id. `choice`: the answer's index among those to all prompts.
/// `random`: the seed if the request has none; further answers to a prompt get the next seeds.
[[nodiscard]] boost::json::object line_of(const Question& question, std::size_t choice, std::uint64_t random);

/// These functions return the responses of /tokenize and /detokenize as JSON. They throw Refusal.
[[nodiscard]] std::string tokenize(std::string_view body, const ServedModel& model);
[[nodiscard]] std::string detokenize(std::string_view body, const ServedModel& model);

}  // namespace shardrun::serve
