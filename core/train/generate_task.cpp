#include <fmt/format.h>

#include <chrono>
#include <deque>
#include <limits>
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

infer::Language language_of(const job::Job& job, const compile::Compiled& compiled) {
  const workload::Models models = compile::models_in(compile::directories_of(job.plugins.path));
  return {checkpoint::read_model(compiled.weights->source(), models).tokenizer,
          compiled.weights->is_hub() ? job.checkpoint : std::filesystem::path()};
}

std::int64_t context_of(const job::Job& job, const compile::Compiled& compiled) {
  return job.infer.context > 0 ? job.infer.context : compiled.settings.options.integer("context");
}

std::int64_t vocabulary_of(const compile::Compiled& compiled) {
  const graph::Function& function = compiled.graph.functions.back();
  return function.values[function.outputs.front().value].type.shape.back();
}

/// Reads a line of the prompts. Throws Error{data} if the job cannot continue it; with events, not for its length.
infer::Prompt prompt_of(std::string_view line, const infer::Language& language, const job::Job& job,
                        const compile::Compiled& compiled) {
  const infer::Request usual = {
      .tokens = job.infer.tokens,
      .sampling = {.temperature = job.infer.temperature,
                   .top_k = job.infer.top_k,
                   .top_p = job.infer.top_p,
                   .min_p = job.infer.min_p,
                   .seed = job.seed,
                   .vocabulary = language.tokenizer() != nullptr ? language.tokenizer()->vocabulary() : 0},
      .ends = language.ends()};
  infer::Prompt prompt = infer::read_prompt(line, language, usual);
  if (prompt.request.scored_from && !job.infer.prompt_logprobs) {
    throw Error(ErrorCode::data, "\"prompt_logprobs\": the job is not made for it: set [infer] prompt_logprobs = true");
  }
  const std::string lacks = infer::lack_of_room(prompt.request, context_of(job, compiled));
  if (!lacks.empty() && !job.infer.events) {
    throw Error(ErrorCode::data, lacks);
  }
  const std::int64_t vocab = vocabulary_of(compiled);
  for (const std::int32_t token : prompt.request.prompt) {
    if (token < 0 || token >= vocab) {
      throw Error(ErrorCode::data,
                  fmt::format("it has the token {}, and the model has tokens 0 to {}", token, vocab - 1));
    }
  }
  return prompt;
}

/// Continues prompts. All ranks get every prompt and draw the same tokens; the first writes the answers, in order.
class GenerateTask : private StreamTask {
 public:
  using StreamTask::StreamTask;

  metrics::Summary run(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    return guarded(executor, failed, [&] {
      if (record_.is_first()) {
        prompts_ = std::min(data::prompts_of(job_).value_or(0), settings_.prompts);
      }
      now_at("loading weights", 0, "loading weights");
      checkpoint::load_parameters(compiled_.weights->source(), compiled_.graph, executor);
      runtime::initialize(compiled_.graph, job_.seed, executor, parameters());
      const infer::Language language = language_of(job_, compiled_);
      if (settings_.begun) {
        settings_.begun(executor);
      }
      open_lines();
      settings_.link.barrier();
      const StepsUnderWay from_here_on;
      record_.now_at(metrics::first_step_activity);
      if (record_.is_first()) {
        predictions_->open_file();
      }
      if (job_.infer.events) {
        write(fmt::format("{{\"ready\":{{\"context\":{},\"vocabulary\":{},\"slots\":{},\"prompt_logprobs\":{}}}}}\n",
                          context_of(job_, compiled_), vocabulary_of(compiled_), compiled_.slots,
                          job_.infer.prompt_logprobs));
        await_writing();
        record_.now_at("");  // the first prompt can come late, so nothing is shown until then
      }
      writing([&] { generate(executor, language); });
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
    infer::Session session(executor, compiled_.settings.caches, compile::decoding_settings(job_, compiled_),
                           context_of(job_, compiled_));
    bool has_more = true;
    const auto is_wanted = [&] { return has_more && added_ < settings_.prompts; };
    while (goes_on() && (is_wanted() || session.is_busy())) {
      while (is_wanted() && goes_on() && has_room(session)) {
        const auto prepare = [&](const std::string& line) { return prepared(line, language); };
        const std::optional<std::string> line = next_line(prepare, !session.is_busy());
        has_more = line.has_value();
        if (!line || line->empty()) {
          break;
        }
        if (const std::optional<std::string> id = cancelled_by(*line)) {
          cancel(session, *id);
          continue;
        }
        add(session, language, prompt_of(*line, language, job_, compiled_));
      }
      if (session.is_busy() && goes_on()) {
        step(executor, session);
      }
    }
    session.stop();
    record_.summary.tokens_per_s = seconds_ > 0 ? static_cast<double>(session.drawn()) / seconds_ : 0;
    metrics::RankSummary& own = record_.summary.ranks[0];
    for (const infer::Session::Calls& each : session.calls()) {
      own.programs[std::string(each.name)] = {.calls = each.calls,
                                              .sent_bytes = sent_in_call(executor, each.program, each.calls)};
      if (each.name == workload::decode_function) {  // the step of `plan`
        own.sent_bytes = own.programs.at(std::string(each.name)).sent_bytes;
      }
    }
  }

  [[nodiscard]] bool goes_on() const { return signal_ == 0 && !has_parted_; }

  /// Whether to read another prompt. One prompt waits beside those in the slots, so that a free slot is used at once.
  /// With events, a later line can cancel an earlier prompt, so lines are read without waiting for slots. The number of
  /// answers that are kept is limited.
  [[nodiscard]] bool has_room(const infer::Session& session) const {
    constexpr std::int64_t kept_for_a_slot = 64;
    return (job_.infer.events || session.requests() <= compiled_.slots) &&
           std::ssize(answers_) < kept_for_a_slot * compiled_.slots;
  }

  /// Returns the line for all ranks. Tokens replace its text, because a template can read the clock. Returns "" if an
  /// event has refused the line, or if it cancels no prompt. Throws Error{data} if it is malformed.
  [[nodiscard]] std::string prepared(const std::string& line, const infer::Language& language) {
    line_ = line;
    if (const std::optional<std::string> id = cancelled_by(line)) {
      line_.clear();
      return find(*id) == answers_.end() ? "" : line;
    }
    infer::Prompt prompt = prompt_of(line, language, job_, compiled_);
    infer::Request& request = prompt.request;
    if (job_.infer.events) {
      prompt.id = prompt.id.empty() ? fmt::format("{}", line_number()) : prompt.id;
      if (find(prompt.id) != answers_.end()) {
        refuse("the id is that of a prompt in work: give each another", "duplicate_id");
        return "";
      }
    }
    const std::int64_t context = context_of(job_, compiled_);
    if (const std::string lacks = infer::lack_of_room(request, context); !lacks.empty()) {
      refuse(lacks, "context_length_exceeded");
      return "";
    }
    request.tokens = std::min(request.tokens, context - std::ssize(request.prompt));
    line_.clear();
    return infer::with_tokens(line, prompt);
  }

  /// JSON of the id of the prompt that a line cancels; nothing if the line is a prompt.
  [[nodiscard]] std::optional<std::string> cancelled_by(const std::string& line) const {
    return job_.infer.events ? infer::read_cancel(line) : std::nullopt;
  }

  /// Writes an event that says why `line_` is not answered. Called on the first rank.
  void refuse(std::string_view message, std::string_view code) {
    const std::string id = infer::id_of_line(std::exchange(line_, ""));
    write(infer::error_event(id.empty() ? fmt::format("{}", line_number()) : id, message, code));
  }

  void skip(const Error& malformed) override {
    if (!job_.infer.events || malformed.code() != ErrorCode::data) {
      StreamTask::skip(malformed);
    } else {
      refuse(malformed.message(), "malformed");
    }
  }

  void add(infer::Session& session, const infer::Language& language, infer::Prompt prompt) {
    prompt.request.id = ++added_;
    prompt.timings = job_.infer.timings;
    if (settings_.added && record_.is_first()) {
      settings_.added(added_, line_number(), prompt.id);
    }
    session.add(prompt.request);
    answers_.emplace_back(added_, line_number(), std::make_unique<infer::Answer>(language, std::move(prompt)));
  }

  void cancel(infer::Session& session, const std::string& id) {
    const auto found = find(id);
    session.cancel(found->id);
    write(found->answer->event(found->text, "cancelled"));
    answers_.erase(found);
  }

  void step(runtime::Executor& executor, infer::Session& session) {
    const auto begin = std::chrono::steady_clock::now();
    const std::int64_t prefilled = session.prefilled();
    now_at("generating", ++steps_);
    executor.begin_step(steps_ - 1);
    naming_step(steps_ - 1, [&] {
      session.step({.drawn = [&](const infer::Drawn& drawn) { take(session, drawn); },
                    .scored = [&](const infer::Scored& scored) { take(scored); },
                    .computed = settings_.computed});
      require_same_tokens();
      if (job_.infer.events) {
        write_events();
      } else {
        write_answers();
      }
    });
    const double seconds = metrics::seconds_since(begin);  // without the time for which a slow reader lets it wait
    seconds_ += seconds;
    if (session.prefilled() == prefilled) {  // otherwise its time is also that of reading prompts
      record_.count_step(seconds);
    }
    naming_step(steps_ - 1, [&] { await_writing(); });
    record_.summary.steps = counted_;
    const bool is_reading = session.drawn() == 0;
    if (prompts_ > 1) {
      tell_progress(is_reading ? "reading prompt" : "answering prompt", std::min(passed() + 1, prompts_), prompts_);
    } else {
      tell_progress(is_reading ? "reading token" : "generating token",
                    is_reading ? session.prefilled() : session.drawn(), 0);
    }
  }

  /// Ranks draw different tokens if their processors round differently, or if a rank's logits are wrong. Throws
  /// Error{internal} then, unless StepSettings has `parted`.
  void require_same_tokens() {
    const bool differs = settings_.link.agree(digest_, std::numeric_limits<std::int32_t>::max()) != digest_;
    if (settings_.parted) {
      has_parted_ =
          settings_.link.agree(differs ? 1 : 0, 1) != 0;  // the rank with the largest digest saw no difference
      if (has_parted_) {
        settings_.parted();
      }
    } else if (differs) {
      throw Error(
          ErrorCode::internal,
          "this rank has drawn other tokens than another rank: their processors compute different bits (use "
          "machines of one instruction set), or a rank has computed or received wrong logits: 'shardrun verify' "
          "tells");
    }
  }

  void take(infer::Session& session, const infer::Drawn& drawn) {
    digest_ = static_cast<std::int32_t>((std::int64_t{digest_} * 31 + drawn.token + 1) %
                                        std::numeric_limits<std::int32_t>::max());
    Waiting& waiting = *std::ranges::find(answers_, drawn.id, &Waiting::id);
    waiting.text += waiting.answer->take(drawn);
    waiting.is_told = false;
    waiting.is_complete = drawn.is_last || waiting.answer->is_stopped();
    if (waiting.answer->is_stopped() && !drawn.is_last) {
      session.cancel(drawn.id);
    }
  }

  void take(const infer::Scored& scored) {
    Waiting& waiting = *std::ranges::find(answers_, scored.id, &Waiting::id);
    waiting.answer->take_scored(scored);
    waiting.is_complete = scored.is_last;
    waiting.is_told = false;
  }

  void write(const std::string& text) {
    if (record_.is_first()) {
      predictions_->put(std::as_bytes(std::span(text)));
    }
  }

  /// Writes all answers before the first incomplete one. As text, also writes what the incomplete one has so far.
  void write_answers() {
    while (!answers_.empty()) {
      Waiting& next = answers_.front();
      if (job_.infer.writes_text) {
        write(std::exchange(next.text, "") + (next.is_complete ? "\n" : ""));
      } else if (next.is_complete) {
        write(next.answer->to_json(next.line) + "\n");
      }
      if (!next.is_complete) {
        return;
      }
      count_record();
      answers_.pop_front();
    }
  }

  /// Writes an event for each answer to which the step has added something.
  void write_events() {
    std::string events;
    std::erase_if(answers_, [&](Waiting& each) {
      if (!std::exchange(each.is_told, true) && record_.is_first()) {
        const auto reason = each.is_complete ? std::optional(each.answer->finish_reason()) : std::nullopt;
        events += each.answer->event(std::exchange(each.text, ""), reason);
      }
      if (each.is_complete) {
        count_record();
      }
      return each.is_complete;
    });
    write(events);
  }

  struct Waiting {
    Waiting(std::int64_t of, std::int64_t in, std::unique_ptr<infer::Answer> its)
        : id(of), line(in), answer(std::move(its)) {}

    std::int64_t id;
    std::int64_t line;  ///< the prompt's line in the file of prompts, on the first rank
    std::unique_ptr<infer::Answer> answer;
    std::string text = {};  ///< the part of the answer that is not written yet
    bool is_complete = false;
    bool is_told = true;  ///< events have told all of the answer so far
  };

  [[nodiscard]] std::deque<Waiting>::iterator find(const std::string& id) {
    return std::ranges::find_if(answers_, [&](const Waiting& each) { return each.answer->id() == id; });
  }

  std::string line_;             ///< the line that is being prepared, on the first rank
  std::deque<Waiting> answers_;  ///< in the order of their prompts
  std::int64_t prompts_ = 0;     ///< lines of the file of prompts, on the first rank; 0: not known
  std::int64_t added_ = 0;       ///< number of prompts
  std::int64_t steps_ = 0;
  double seconds_ = 0;       ///< of steps
  std::int32_t digest_ = 0;  ///< of all tokens drawn
  bool has_parted_ = false;  ///< the ranks have drawn different tokens
};

}  // namespace

void check_prompts(const job::Job& job, const compile::Compiled& compiled) {
  if (job.infer.events || job.infer.malformed == job::Malformed::skip || !data::prompts_of(job)) {
    return;
  }
  const infer::Language language = language_of(job, compiled);
  files::FileDescriptor file(::open(job.infer.from.c_str(), O_RDONLY | O_CLOEXEC));
  data::LineReader lines({std::move(file), job.infer.from.string(), [] { return true; }}, infer::most_line_bytes);
  while (const std::optional<std::string> line = lines.next()) {
    stop_point();
    try {
      static_cast<void>(prompt_of(*line, language, job, compiled));
    } catch (const Error& error) {
      throw Error(ErrorCode::data, fmt::format("{}: {}", lines.place(), error.message()));
    }
  }
}

metrics::Summary run_generating(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                                metrics::Summary& failed) {
  return GenerateTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
