#pragma once

/// Lists of actions as text, in the notation of torch.distributed.pipelining: one line per stage, with cells separated
/// by commas. A cell is CHUNK, a letter, MICROBATCH, such as 2F0. The letters are F forward, B backward, and backward's
/// parts I (gradients of activations) and W (gradients of parameters). An empty cell is idle time.

#include <shardrun/sdk/strategy/plan.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace shardrun::sdk {

namespace detail {

/// Removes a number from the start of `text` and stores it in `number`. Returns false if there is none.
[[nodiscard]] inline bool take_number(std::string_view& text, std::uint32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc();
}

/// Parses a cell. `where`: "line 2, cell 5". Throws InvalidJob.
[[nodiscard]] inline Action action_of_cell(std::string_view cell, const std::string& where) {
  constexpr std::string_view digits = "0123456789";
  constexpr std::array<std::string_view, 7> communication = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                                             "UNSHARD", "RESHARD", "REDUCE_GRAD"};
  const std::string shown(cell.substr(0, 40));
  Action action;
  const bool has_chunk = take_number(cell, action.chunk);
  const std::string_view word = cell.substr(0, cell.find_first_of(digits));
  if (has_chunk && std::find(communication.begin(), communication.end(), word) != communication.end()) {
    throw InvalidJob(where + ": '" + shown +
                     "' is communication, which follows from what is computed: write F, B, I and W alone");
  }
  constexpr std::string_view letters = "FBIW";
  constexpr std::array<Action::Kind, 4> kinds = {Action::Kind::forward, Action::Kind::backward,
                                                 Action::Kind::backward_input, Action::Kind::backward_weight};
  const std::size_t kind = word.size() == 1 ? letters.find(word.front()) : std::string_view::npos;
  cell.remove_prefix(word.size());
  if (!has_chunk || kind == std::string_view::npos || !take_number(cell, action.microbatch) || !cell.empty()) {
    throw InvalidJob(where + ": '" + shown +
                     "' is no action, expected the number of a chunk, one of F, B, I and W, and the number of a "
                     "microbatch, as in 2F0");
  }
  action.kind = kinds[kind];
  return action;
}

/// Removes from `text` the part before `separator`, or all of it without one, and the separator. Returns the part.
[[nodiscard]] inline std::string_view take_until(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

[[nodiscard]] inline std::string_view without_space_around(std::string_view text) {
  constexpr std::string_view space = " \t\r\n";
  const std::size_t first = std::min(text.find_first_not_of(space), text.size());
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(space) + 1);
}

}  // namespace detail

/// The actions of each stage, from its line of the text. Empty lines at the end are ignored. Throws InvalidJob with
/// line and cell, both counted from 1.
[[nodiscard]] inline std::vector<std::vector<Action>> actions_from_csv(std::string_view text) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.starts_with(byte_order_mark)) {
    text.remove_prefix(byte_order_mark.size());
  }
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  std::vector<std::vector<Action>> stages;
  while (!text.empty()) {
    std::string_view line = detail::take_until(text, '\n');
    std::vector<Action>& actions = stages.emplace_back();
    for (std::size_t cell = 1; !line.empty(); ++cell) {
      const std::string_view action = detail::without_space_around(detail::take_until(line, ','));
      if (!action.empty()) {
        actions.push_back(
            detail::action_of_cell(action, "line " + std::to_string(stages.size()) + ", cell " + std::to_string(cell)));
      }
    }
  }
  return stages;
}

/// For each chunk, the stage whose list has actions of it. Throws InvalidJob if a chunk is in two lists or in none.
[[nodiscard]] inline std::vector<std::uint32_t> stages_of_chunks(const std::vector<std::vector<Action>>& actions) {
  std::map<std::uint32_t, std::uint32_t> stages;
  for (std::uint32_t stage = 0; stage < actions.size(); ++stage) {
    for (const Action& action : actions[stage]) {
      const std::uint32_t first = stages.try_emplace(action.chunk, stage).first->second;
      if (first != stage) {
        throw InvalidJob("chunk " + std::to_string(action.chunk) + " is on line " + std::to_string(first + 1) +
                         " and on line " + std::to_string(stage + 1) + ": a chunk is on one stage");
      }
    }
  }
  std::vector<std::uint32_t> result;
  for (const auto& [chunk, stage] : stages) {
    if (chunk != result.size()) {
      throw InvalidJob("it has chunk " + std::to_string(chunk) + " and no chunk " + std::to_string(result.size()) +
                       ": chunks are numbered from 0, in the order of the layers");
    }
    result.push_back(stage);
  }
  return result;
}

}  // namespace shardrun::sdk
