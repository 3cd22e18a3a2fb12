#include <fmt/format.h>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/stop.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/weights.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/infer/prompts.h"
#include "core/train/stream_task.h"

namespace shardrun::train {
namespace {

/// Continues prompts. All ranks get every prompt and draw the same tokens; the first writes the answers, in order.
class GenerateTask : private StreamTask {
 public:
  using StreamTask::StreamTask;

  metrics::Summary run(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    return guarded(executor, failed, [&] {
      now_at("loading weights", 0, "loading weights");
      checkpoint::load_parameters(compiled_.weights->source(), compiled_.graph, executor);
      runtime::initialize(compiled_.graph, job_.seed, executor, parameters());
      const checkpoint::TrainedModel trained = checkpoint::read_model(
          compiled_.weights->source(), compile::models_in(compile::directories_of(job_.plugins.path)));
      const infer::Language language(trained.tokenizer,
                                     compiled_.weights->is_hub() ? job_.checkpoint : std::filesystem::path());
      open_lines();
      settings_.link.barrier();
      const StepsUnderWay from_here_on;
      record_.now_at(metrics::first_step_activity);
      if (record_.is_first()) {
        predictions_->open_file();
      }
      generate(executor, language);
      end_streams();
      return signal_;
    });
  }

 private:
  [[nodiscard]] std::set<graph::StateId> parameters() const {
    std::set<graph::StateId> found;
    for (const graph::StateId state : compiled_.graph.states.ids()) {
      if (compiled_.graph.states[state].kind == graph::StateKind::parameter) {
        found.insert(state);
      }
    }
    return found;
  }

  void generate(runtime::Executor& executor, const infer::Language& language) {
    infer::Session session(executor, compiled_.settings.caches, job_.infer.slots);
    bool has_more = true;
    while (signal_ == 0) {
      // One prompt waits beside those in work, so that a slot which becomes free is used at once.
      while (has_more && signal_ == 0 && static_cast<std::int64_t>(answers_.size()) <= job_.infer.slots) {
        has_more = add_prompt(session, language);
      }
      if (!session.is_busy()) {
        return;
      }
      step(executor, session);
    }
  }

  /// Reads a prompt, and adds it to the session. Returns false at the end of the prompts.
  bool add_prompt(infer::Session& session, const infer::Language& language) {
    const std::optional<std::string> line = next_line();
    if (!line) {
      return false;
    }
    ++line_;
    try {
      infer::Prompt prompt = infer::read_prompt(*line, language, usual(language));
      infer::Request& request = prompt.request;
      request.id = line_;
      const std::int64_t room = session.most_tokens() - static_cast<std::int64_t>(request.prompt.size());
      if (room < 1) {
        throw Error(
            ErrorCode::data,
            fmt::format("it has {}, and with an answer of one token there is room for {} ([infer] context)",
                        counted(static_cast<std::int64_t>(request.prompt.size()), "token"), session.most_tokens()));
      }
      request.tokens = std::min(request.tokens, room);
      require_tokens(request);
      session.add(request);
      answers_.emplace_back(line_, std::make_unique<infer::Answer>(language, std::move(prompt)));
    } catch (const Error& malformed) {
      skip(Error(malformed.code(), fmt::format("prompt {}: {}", line_, malformed.message())));
    }
    return true;
  }

  /// What a prompt has that does not say otherwise.
  [[nodiscard]] infer::Request usual(const infer::Language& language) const {
    return {.tokens = job_.infer.tokens,
            .sampling = {.temperature = job_.infer.temperature,
                         .top_k = job_.infer.top_k,
                         .top_p = job_.infer.top_p,
                         .min_p = job_.infer.min_p,
                         .seed = job_.seed,
                         .vocabulary = language.tokenizer() != nullptr ? language.tokenizer()->vocabulary() : 0},
            .ends = language.ends()};
  }

  void require_tokens(const infer::Request& request) const {
    const graph::Function& function = compiled_.graph.functions.back();
    const std::int64_t vocab = function.values[function.outputs.front().value].type.shape.back();
    for (const std::int32_t token : request.prompt) {
      if (token < 0 || token >= vocab) {
        throw Error(ErrorCode::data,
                    fmt::format("it has the token {}, and the model has tokens 0 to {}", token, vocab - 1));
      }
    }
  }

  void step(runtime::Executor& executor, infer::Session& session) {
    const auto begin = std::chrono::steady_clock::now();
    now_at("generating", ++steps_);
    executor.begin_step(steps_ - 1);
    naming_step(steps_ - 1, [&] {
      session.step([&](const infer::Drawn& drawn) { take(session, drawn); });
      write_answers();
      await_writing();
    });
    record_.count_step(metrics::seconds_since(begin));
    record_.summary.steps = counted_;
    tell_progress("generating token", session.drawn(), 0);
  }

  void take(infer::Session& session, const infer::Drawn& drawn) {
    Waiting& waiting = *std::ranges::find(answers_, drawn.id, &Waiting::id);
    waiting.text += waiting.answer->take(drawn);
    waiting.is_complete = drawn.is_last || waiting.answer->is_stopped();
    if (waiting.answer->is_stopped() && !drawn.is_last) {
      session.cancel(drawn.id);
    }
  }

  void write(const std::string& text) {
    if (record_.is_first()) {
      predictions_->put(std::as_bytes(std::span(text)));
    }
  }

  /// Writes the answers that are complete and precede all others, and what is certain of the next one's text.
  void write_answers() {
    while (!answers_.empty()) {
      Waiting& next = answers_.front();
      if (job_.infer.writes_text) {
        write(std::exchange(next.text, "") + (next.is_complete ? "\n" : ""));
      } else if (next.is_complete) {
        write(next.answer->to_json() + "\n");
      }
      if (!next.is_complete) {
        return;
      }
      count_record();
      answers_.pop_front();
    }
  }

  struct Waiting {
    Waiting(std::int64_t of, std::unique_ptr<infer::Answer> its) : id(of), answer(std::move(its)) {}

    std::int64_t id;
    std::unique_ptr<infer::Answer> answer;
    std::string text = {};  ///< of the answer, not written yet
    bool is_complete = false;
  };

  std::deque<Waiting> answers_;  ///< in the order of their prompts
  std::int64_t line_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace

metrics::Summary run_generating(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                                metrics::Summary& failed) {
  return GenerateTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
