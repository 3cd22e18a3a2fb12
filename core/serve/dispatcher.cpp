#include "core/serve/dispatcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace shardrun::serve {
namespace {

constexpr std::chrono::milliseconds first_pause{
    500};  ///< before the second restart without an answer; the first has none, and each further one is twice as long
constexpr std::chrono::milliseconds longest_pause{30'000};

std::vector<infer::Likely> likely_of(const boost::json::object& event, std::string_view key) {
  std::vector<infer::Likely> found;
  if (const boost::json::value* const all = event.if_contains(key)) {
    for (const boost::json::value& each : all->as_array()) {
      infer::Likely& likely = found.emplace_back();
      for (const boost::json::value& pair : each.as_array()) {
        likely.emplace_back(static_cast<std::int32_t>(pair.at(0).as_int64()), pair.at(1).to_number<double>());
      }
    }
  }
  return found;
}

Piece piece_of(const boost::json::object& event) {
  Piece piece{.text = std::string(event.at("text").as_string())};
  for (const boost::json::value& token : event.at("tokens").as_array()) {
    piece.tokens.push_back(static_cast<std::int32_t>(token.as_int64()));
  }
  if (const boost::json::value* const all = event.if_contains("logprobs")) {
    for (const boost::json::value& each : all->as_array()) {
      piece.logprobs.push_back(each.to_number<double>());
    }
  }
  piece.top_logprobs = likely_of(event, "top_logprobs");
  if (const boost::json::value* const all = event.if_contains("prompt_logprobs")) {
    for (const boost::json::value& each : all->as_array()) {
      piece.prompt_logprobs.push_back(each.is_null() ? std::nullopt : std::optional(each.to_number<double>()));
    }
  }
  piece.prompt_top_logprobs = likely_of(event, "prompt_top_logprobs");
  if (const boost::json::value* const reason = event.if_contains("finish_reason")) {
    piece.finish_reason = reason->as_string();
    piece.answer_tokens = event.at("answer_tokens").as_int64();
  }
  return piece;
}

}  // namespace

Dispatcher::Dispatcher(boost::asio::io_context& io, Settings settings)
    : io_(io), settings_(std::move(settings)), start_again_(io) {}

void Dispatcher::start_job() {
  was_ready_ = false;
  is_failing_ = false;
  try {
    job_ = std::make_shared<JobProcess>(
        io_, JobProcess::Events{.told = [this](const auto& event) { hear(event); },
                                .said = settings_.log_job,
                                .ended = [this](const auto& how, int code) { job_ended(how, code); }});
    job_->start(settings_.job);
  } catch (const Error& error) {
    job_ended(error.message(), shardrun::exit_code(error.code()));
  }
}

void Dispatcher::become(State state) {
  state_ = state;
  settings_.changed();
}

std::uint64_t Dispatcher::ask(boost::json::object line, Listener listener) {
  const std::uint64_t number = next_number_++;
  line["id"] = number;
  waiting_.push_back({number, boost::json::serialize(line), std::move(listener)});
  send_prompts();
  return number;
}

void Dispatcher::cancel(std::uint64_t number) {
  if (std::erase_if(waiting_, [&](const Prompt& each) { return each.number == number; }) > 0) {
    return settings_.changed();
  }
  const auto found = in_work_.find(number);
  if (found == in_work_.end() || !found->second.told) {
    return;
  }
  found->second = {};
  job_->send(fmt::format("{{\"cancel\":{}}}", number));
}

void Dispatcher::send_prompts() {
  while (state_ == State::ready && !waiting_.empty() && in_work_.size() < most_in_work()) {
    Prompt next = std::move(waiting_.front());
    waiting_.pop_front();
    in_work_.emplace(next.number, std::move(next.listener));
    job_->send(next.line);
  }
}

void Dispatcher::hear(const boost::json::object& event) {
  if (const boost::json::value* const ready = event.if_contains("ready")) {
    context_ = ready->at("context").as_int64();
    vocabulary_ = ready->at("vocabulary").as_int64();
    slots_ = ready->at("slots").as_int64();
    scores_prompts_ = ready->at("prompt_logprobs").as_bool();
    was_ready_ = true;
    become(State::ready);
    return send_prompts();
  }
  if (event.contains("failed")) {
    is_failing_ = true;
    state_ = State::loading;
    fail_those_in_work("a rank of the job has failed");
    return settings_.changed();
  }
  if (is_failing_) {
    return;  // the event is a piece of an answer that has failed
  }
  const boost::json::value& id = event.at("id");
  const auto found = id.is_int64() ? in_work_.find(static_cast<std::uint64_t>(id.get_int64())) : in_work_.end();
  if (found == in_work_.end()) {
    return settings_.log(
        fmt::format("the job told of a prompt that it does not have: {}", boost::json::serialize(event)));
  }
  const boost::json::value* const error = event.if_contains("error");
  const bool is_last = error != nullptr || event.contains("finish_reason");
  pause_ = {};
  const Listener listener = is_last ? std::move(found->second) : found->second;
  if (is_last) {
    in_work_.erase(found);
    send_prompts();
  }
  if (error != nullptr && listener.failed) {
    listener.failed({.status = 400, .message = std::string(error->at("message").as_string())});
  } else if (error == nullptr && listener.told) {
    listener.told(piece_of(event));
  }
  if (is_last) {
    settings_.changed();
  }
}

void Dispatcher::fail_those_in_work(const std::string& why) {
  for (const auto& [number, listener] : std::exchange(in_work_, {})) {
    if (listener.failed) {
      listener.failed({.status = was_ready_ ? 500 : 503,
                       .message = fmt::format("{} while the request was in work: send it again", why)});
    }
  }
}

void Dispatcher::job_ended(const std::string& how, int code) {
  how_ended_ = how;
  exit_code_ = code;
  job_.reset();
  const bool is_end = is_finishing_ || (!was_ready_ && restarts_ == 0);
  state_ = is_end ? State::ended : State::loading;
  if (!was_ready_) {  // the prompts that wait have waited for this start, so they fail, too
    for (Prompt& each : std::exchange(waiting_, {})) {
      in_work_.emplace(each.number, std::move(each.listener));
    }
  }
  fail_those_in_work(how);
  settings_.changed();  // can call finish()
  if (is_end || is_finishing_) {
    return;
  }
  ++restarts_;
  settings_.log(
      fmt::format("{}; starting it again{}", how,
                  pause_.count() == 0 ? "" : fmt::format(" in {:.1f} s", static_cast<double>(pause_.count()) / 1e3)));
  start_again_.expires_after(pause_);
  start_again_.async_wait([this](boost::system::error_code stopped) {
    if (!stopped) {
      start_job();
    }
  });
  pause_ = std::clamp(2 * pause_, first_pause, longest_pause);
}

void Dispatcher::finish() {
  is_finishing_ = true;
  if (job_ == nullptr) {
    start_again_.cancel();
    return become(State::ended);
  }
  job_->end_input();
}

void Dispatcher::kill() {
  if (job_ != nullptr) {
    job_->kill();
    job_.reset();
  }
}

}  // namespace shardrun::serve
