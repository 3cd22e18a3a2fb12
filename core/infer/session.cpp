#include "core/infer/session.h"

#include <algorithm>
#include <utility>

#include "core/data/feed.h"
#include "core/device/host_tensor.h"

namespace shardrun::infer {

Session::Program::Program(runtime::Executor& executor, std::string_view name, std::int64_t rows)
    : number(executor.find(name, rows)),
      inputs(executor.find_input(number, "inputs")),
      positions(executor.find_input(number, "positions")),
      pages(executor.find_input(number, "pages")),
      logits(executor.output(number, "logits")) {}

Session::Session(runtime::Executor& executor, const sdk::CacheSizes& caches, const workload::DecodingSettings& made,
                 std::int64_t context)
    : executor_(executor),
      chunk_(made.chunk),
      context_(context),
      prefill_(executor, workload::prefill_function, 1),
      decode_(executor, workload::decode_function, made.slots),
      slots_(static_cast<std::size_t>(made.slots)),
      pages_(caches, made.chunk) {
  if (made.scores_prompts) {
    score_.emplace(executor, workload::score_function, 1);
  }
}

void Session::add(Request request) {
  request.tokens = std::min(request.tokens, context_ - std::ssize(request.prompt));
  waiting_.push_back(std::move(request));
}

void Session::cancel(std::int64_t id) {
  std::erase_if(waiting_, [id](const Request& each) { return each.id == id; });
  for (Slot& slot : slots_) {
    if (slot.is_used && slot.request.id == id) {
      release(slot);
    }
  }
}

std::int64_t Session::requests() const {
  return std::ssize(waiting_) + std::ranges::count(slots_, true, &Slot::is_used);
}

/// The tokens of a prompt that need not be read if another prompt begins with them. The logits behind the others are
/// needed: those after the prompt, and those before tokens that are scored.
std::span<const std::int32_t> Session::shareable(const Request& request) {
  const std::int64_t prompted = std::ssize(request.prompt);
  const std::int64_t most = std::min(prompted, request.scored_from.value_or(prompted)) - 1;
  return std::span(request.prompt).first(static_cast<std::size_t>(std::max<std::int64_t>(most, 0)));
}

void Session::admit() {
  while (!waiting_.empty()) {
    const auto slot = std::ranges::find(slots_, false, &Slot::is_used);
    if (slot == slots_.end()) {
      return;
    }
    const Request& next = waiting_.front();
    // The last token that is added is never read again.
    const std::int64_t cached = std::ssize(next.prompt) + std::max<std::int64_t>(next.tokens, 1) - 1;
    std::optional<Pages::Held> held = pages_.take(shareable(next), cached);
    if (!held) {
      return;
    }
    *slot = {.is_used = true, .request = std::move(waiting_.front()), .number = started_++, .held = std::move(*held)};
    slot->tokens = slot->request.prompt;
    waiting_.pop_front();
  }
}

void Session::release(Slot& slot) {
  pages_.release(slot.held);
  slot = {};
}

void Session::step(const Listener& listener) {
  admit();
  Slot* next = nullptr;  // of the sequences whose prompt is not read, the one that started first
  for (Slot& slot : slots_) {
    if (slot.is_used && !slot.is_read() && (next == nullptr || slot.number < next->number)) {
      next = &slot;
    }
  }
  if (next != nullptr) {
    prefill(*next, listener);
  }
  if (std::ranges::any_of(slots_, &Slot::is_read)) {
    decode(listener);
  }
}

void Session::feed(const Program& program, const std::function<Fed(std::int64_t row)>& fed) {
  const device::HostAccess host = executor_.host(device::Access::write);
  const auto fill = [&](const std::optional<device::TensorView>& input, std::int32_t absent, const auto& value) {
    if (!input) {
      return;
    }
    data::feed_inputs(host, *input, [&](std::int64_t first, const device::TensorView& rows) {
      const std::span<std::int32_t> elements = device::elements_of<std::int32_t>(rows);
      const auto columns = static_cast<std::size_t>(rows.shape[1]);
      for (std::size_t e = 0; e < elements.size(); ++e) {
        const Fed of_row = fed(first + static_cast<std::int64_t>(e / columns));
        elements[e] = of_row.slot == nullptr ? absent : value(of_row, e % columns);
      }
    });
  };
  fill(program.inputs, 0, [](const Fed& row, std::size_t i) {
    const auto at = static_cast<std::size_t>(row.slot->cached) + i;
    return static_cast<std::int64_t>(i) < row.tokens ? row.slot->tokens[at] : 0;
  });
  fill(program.positions, -1, [](const Fed& row, std::size_t i) {
    const auto at = static_cast<std::int64_t>(i);
    return at < row.tokens ? static_cast<std::int32_t>(row.slot->cached + at) : -1;
  });
  fill(program.pages, -1, [](const Fed& row, std::size_t i) {
    const std::vector<std::int32_t>& pages = row.slot->held.pages();
    return i < pages.size() ? pages[i] : -1;
  });
}

void Session::prefill(Slot& slot, const Listener& listener) {
  const std::span<const std::int32_t> given = shareable(slot.request);
  while (slot.cached < slot.held.shared() ||
         pages_.adopt(slot.held, given.subspan(std::min(given.size(), static_cast<std::size_t>(slot.cached))))) {
    shared_ += chunk_;
    slot.cached += chunk_;
  }
  const auto prompted = static_cast<std::int64_t>(slot.tokens.size());
  const std::int64_t tokens = std::min(prompted - slot.cached, chunk_);
  const std::optional<std::int64_t>& from = slot.request.scored_from;
  const bool is_scored = from && *from <= slot.cached + tokens;  // by logits of this chunk
  const Program& program = is_scored ? *score_ : prefill_;
  feed(program, [&](std::int64_t) { return Fed{&slot, tokens}; });
  executor_.run(program.number, device::Scalars{.position = tokens - 1});
  const bool is_read = slot.cached + tokens == prompted;
  const device::HostTensor host(executor_.host(device::Access::read), program.logits, device::Access::read);
  const std::span<const float> logits = device::elements_of<float>(host.view());
  if (is_scored) {
    score(slot, logits, tokens, listener);
  }
  const std::int64_t first = std::exchange(slot.cached, slot.cached + tokens);
  prefilled_ += tokens;
  pages_.share(slot.held,
               std::span(slot.tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(tokens)));
  if (is_read && slot.request.tokens == 0) {
    release(slot);
  } else if (is_read) {
    const std::int64_t rows = program.logits.global[0];  // of the chunk if the prompt is scored, otherwise 1
    const std::size_t vocabulary = logits.size() / static_cast<std::size_t>(rows);
    draw(slot, logits.subspan(static_cast<std::size_t>(std::min(rows, tokens) - 1) * vocabulary, vocabulary), listener);
  }
}

void Session::score(const Slot& slot, std::span<const float> logits, std::int64_t fed, const Listener& listener) const {
  const Request& request = slot.request;
  const std::size_t vocabulary = logits.size() / static_cast<std::size_t>(score_->logits.global[0]);
  const std::int64_t prompted = std::ssize(request.prompt);
  const auto tell = [&](std::int64_t at, std::span<const float> of) {
    listener.scored({.id = request.id,
                     .token = request.prompt[static_cast<std::size_t>(at)],
                     .logits = of,
                     .is_last = request.tokens == 0 && at + 1 == prompted});
  };
  if (slot.cached == 0 && *request.scored_from == 0) {
    tell(0, {});
  }
  for (std::int64_t row = std::max<std::int64_t>(0, *request.scored_from - 1 - slot.cached); row < fed; ++row) {
    if (slot.cached + row + 1 < prompted) {
      tell(slot.cached + row + 1, logits.subspan(static_cast<std::size_t>(row) * vocabulary, vocabulary));
    }
  }
}

void Session::decode(const Listener& listener) {
  std::vector<Slot*> fed;
  for (Slot& slot : slots_) {
    fed.push_back(slot.is_read() ? &slot : nullptr);
  }
  feed(decode_, [&](std::int64_t row) { return Fed{fed[static_cast<std::size_t>(row)], 1}; });
  executor_.run(decode_.number, device::Scalars{.position = 0});
  const device::HostTensor logits(executor_.host(device::Access::read), decode_.logits, device::Access::read);
  const std::span<const float> all = device::elements_of<float>(logits.view());
  const std::size_t vocabulary = all.size() / fed.size();
  for (std::size_t row = 0; row < fed.size(); ++row) {
    if (fed[row] != nullptr) {
      ++fed[row]->cached;
      draw(*fed[row], all.subspan(row * vocabulary, vocabulary), listener);
    }
  }
}

void Session::draw(Slot& slot, std::span<const float> logits, const Listener& listener) {
  const Request& request = slot.request;
  const std::int32_t token = draw_token(logits, request.sampling, {slot.tokens, request.prompt.size()});
  slot.tokens.push_back(token);
  ++drawn_;
  const bool is_end = std::ranges::find(request.ends, token) != request.ends.end();
  const auto drawn = static_cast<std::int64_t>(slot.tokens.size() - request.prompt.size());
  const bool is_last = is_end || drawn >= request.tokens;
  listener.drawn({.id = request.id, .token = token, .logits = logits, .is_last = is_last, .is_end = is_end});
  if (is_last && slot.is_used) {  // it may have been cancelled
    release(slot);
  }
}

}  // namespace shardrun::infer
