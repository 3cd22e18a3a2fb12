#include "core/infer/session.h"

#include <algorithm>
#include <utility>

#include "core/data/feed.h"
#include "core/device/host_tensor.h"

namespace shardrun::infer {

Session::Program::Program(runtime::Executor& executor, std::string_view function, std::int64_t rows)
    : number(executor.find(function, rows)),
      inputs(executor.find_input(number, "inputs")),
      positions(executor.find_input(number, "positions")),
      pages(executor.find_input(number, "pages")),
      logits(executor.output(number, "logits")),
      name(function) {}

Session::Session(runtime::Executor& executor, const sdk::CacheSizes& caches, const workload::DecodingSettings& made,
                 std::int64_t context)
    : executor_(executor),
      chunk_(made.chunk),
      context_(context),
      prefill_(executor, workload::prefill_function, 1),
      decode_(executor, workload::decode_function, made.rows()),
      slots_(static_cast<std::size_t>(made.slots)),
      groups_(static_cast<std::size_t>(made.groups)),
      stage_(executor.programs().stage),
      most_(executor.programs().stages),
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

/// The tokens of a prompt that need not be read if another prompt begins with them. The other tokens must be read,
/// because the logits after them are needed to draw the first token or to score the next one.
std::span<const std::int32_t> Session::shareable(const Request& request) {
  const std::int64_t prompted = std::ssize(request.prompt);
  const std::int64_t most = std::min(prompted, request.scored_from.value_or(prompted)) - 1;
  return std::span(request.prompt).first(static_cast<std::size_t>(std::max<std::int64_t>(most, 0)));
}

std::size_t Session::group_of(const Slot& slot) const {
  return static_cast<std::size_t>(&slot - slots_.data()) % groups_;
}

/// Starts requests while there are slots and pages, each in the group that has the fewest requests.
void Session::admit() {
  while (!waiting_.empty()) {
    std::vector<std::int64_t> used(groups_, 0);
    for (const Slot& each : slots_) {
      used[group_of(each)] += each.is_used ? 1 : 0;
    }
    Slot* slot = nullptr;
    for (Slot& each : slots_) {
      if (!each.is_used && (slot == nullptr || used[group_of(each)] < used[group_of(*slot)])) {
        slot = &each;
      }
    }
    if (slot == nullptr) {
      return;
    }
    const Request& next = waiting_.front();
    // The last token that is added needs no place in the caches, because no call reads it.
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
  while (true) {
    while (under_way_.size() < most_ && launch_next()) {
    }
    if (under_way_.empty() || complete(listener)) {
      return;
    }
    const bool decodes = std::ranges::any_of(slots_, &Slot::is_read) ||
                         std::ranges::any_of(under_way_, [&](const Launched& each) { return !is_prefill(each); });
    if (!decodes) {
      return;
    }
  }
}

void Session::stop() {
  waiting_.clear();
  for (Slot& slot : slots_) {
    if (slot.is_used) {
      release(slot);
    }
  }
  while (!under_way_.empty()) {
    static_cast<void>(complete({}));
  }
  executor_.finish_sends();
}

std::vector<Session::Calls> Session::calls() const {
  std::vector<Calls> made;
  for (const Program* const each : {&prefill_, score_ ? &*score_ : nullptr, &decode_}) {
    if (each != nullptr && each->calls > 0) {
      made.push_back({.name = each->name, .program = each->number, .calls = each->calls});
    }
  }
  return made;
}

bool Session::launch_next() {
  for (std::size_t tried = 0; tried <= groups_; ++tried) {
    const std::size_t turn = std::exchange(turn_, (turn_ + 1) % (groups_ + 1));
    std::optional<Launched> next = turn == 0 ? next_prefill() : next_decode(turn - 1);
    if (next) {
      under_way_.push_back(std::move(*next));
      const auto late = static_cast<std::size_t>(std::ranges::count(under_way_, false, &Launched::is_begun));
      if (late > stage_) {
        begin(*std::ranges::find(under_way_, false, &Launched::is_begun));
      }
      return true;
    }
  }
  return false;
}

/// Makes a call with the next chunk of the prompt that started first and is not read yet; nothing if all are read.
std::optional<Session::Launched> Session::next_prefill() {
  Slot* slot = nullptr;
  for (Slot& each : slots_) {
    if (each.is_used && each.cached < std::ssize(each.request.prompt) &&
        (slot == nullptr || each.number < slot->number)) {
      slot = &each;
    }
  }
  if (slot == nullptr) {
    return std::nullopt;
  }
  const std::span<const std::int32_t> given = shareable(slot->request);
  while (slot->cached < slot->held.shared() ||
         pages_.adopt(slot->held, given.subspan(std::min(given.size(), static_cast<std::size_t>(slot->cached))))) {
    shared_ += chunk_;
    slot->cached += chunk_;
  }
  const std::int64_t first = slot->cached;
  const std::int64_t tokens = std::min(std::ssize(slot->request.prompt) - first, chunk_);
  const std::span<const std::int32_t> read =
      std::span(slot->tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(tokens));
  const std::optional<std::int64_t>& from = slot->request.scored_from;
  const bool is_scored = from && *from <= first + tokens;  // whether logits of this chunk score a token
  Launched call{.program = is_scored ? &*score_ : &prefill_,
                .rows = {{.slot = static_cast<std::size_t>(slot - slots_.data()),
                          .request = slot->number,
                          .first = first,
                          .tokens = {read.begin(), read.end()},
                          .pages = slot->held.pages()}}};
  slot->cached += tokens;
  prefilled_ += tokens;
  pages_.share(slot->held, read);  // each stage computes this chunk before the calls that are launched later
  return call;
}

/// Makes a call with a token of each sequence of a group; nothing if none has one, or the group's call is under way.
std::optional<Session::Launched> Session::next_decode(std::size_t group) {
  const bool waits =
      std::ranges::any_of(under_way_, [&](const Launched& each) { return !is_prefill(each) && each.group == group; });
  Launched call{.program = &decode_, .group = group};
  bool is_idle = true;
  for (std::size_t s = group; s < slots_.size() && !waits; s += groups_) {
    Slot& slot = slots_[s];
    Fed& row = call.rows.emplace_back();
    if (slot.is_read()) {
      row = {.slot = s,
             .request = slot.number,
             .first = slot.cached,
             .tokens = {slot.tokens.back()},
             .pages = slot.held.pages()};
      ++slot.cached;
      is_idle = false;
    }
  }
  return is_idle ? std::nullopt : std::optional(std::move(call));
}

void Session::feed(const Program& program, const std::vector<Fed>& rows) {
  const device::HostAccess host = executor_.host(device::Access::write);
  const auto fill = [&](const std::optional<device::TensorView>& input, std::int32_t absent, const auto& value) {
    if (!input) {
      return;
    }
    data::feed_inputs(host, *input, [&](std::int64_t first, const device::TensorView& part) {
      const std::span<std::int32_t> elements = device::elements_of<std::int32_t>(part);
      const auto columns = static_cast<std::size_t>(part.shape[1]);
      for (std::size_t e = 0; e < elements.size(); ++e) {
        const auto row = static_cast<std::size_t>(first) + e / columns;
        const bool is_absent = row >= rows.size() || rows[row].request < 0;
        elements[e] = is_absent ? absent : value(rows[row], e % columns);
      }
    });
  };
  fill(program.inputs, 0, [](const Fed& row, std::size_t i) { return i < row.tokens.size() ? row.tokens[i] : 0; });
  fill(program.positions, -1, [](const Fed& row, std::size_t i) {
    return i < row.tokens.size() ? static_cast<std::int32_t>(row.first) + static_cast<std::int32_t>(i) : -1;
  });
  fill(program.pages, -1, [](const Fed& row, std::size_t i) { return i < row.pages.size() ? row.pages[i] : -1; });
}

/// Begins a call on this rank. The last stage waits for nothing that others send back, so it runs the whole program.
void Session::begin(Launched& call) {
  feed(*call.program, call.rows);
  const device::Scalars scalars{.position = is_prefill(call) ? std::ssize(call.rows.front().tokens) - 1 : 0};
  if (stage_ + 1 == most_) {
    executor_.run(call.program->number, scalars);
  } else {
    executor_.begin(call.program->number, scalars);
  }
  call.is_begun = true;
  ++call.program->calls;
}

bool Session::complete(const Listener& listener) {
  if (!under_way_.front().is_begun) {
    begin(under_way_.front());
  }
  const Launched call = std::move(under_way_.front());
  under_way_.pop_front();
  if (stage_ + 1 < most_) {
    executor_.end(call.program->number);
  }
  const device::HostTensor host(executor_.host(device::Access::read), call.program->logits, device::Access::read);
  const std::span<const float> logits = device::elements_of<float>(host.view());
  if (is_prefill(call)) {
    return take_chunk(call, logits, listener);
  }
  const auto rows = static_cast<std::size_t>(decode_.logits.global[0]);
  const std::size_t vocabulary = logits.size() / rows;
  for (std::size_t row = 0; row < call.rows.size(); ++row) {
    if (Slot* const slot = slot_of(call.rows[row])) {
      const std::span<const float> own = logits.subspan(row * vocabulary, vocabulary);
      tell(*slot, call.rows[row].first, 1, own, listener);
      draw(*slot, own, listener);
    }
  }
  return true;
}

Session::Slot* Session::slot_of(const Fed& row) {
  Slot& slot = slots_[row.slot];
  return row.request >= 0 && slot.is_used && slot.number == row.request ? &slot : nullptr;
}

bool Session::take_chunk(const Launched& call, std::span<const float> logits, const Listener& listener) {
  const Fed& row = call.rows.front();
  Slot* const slot = slot_of(row);
  if (slot == nullptr) {
    return false;
  }
  const std::int64_t tokens = std::ssize(row.tokens);
  const std::int64_t rows = call.program->logits.global[0];  // the chunk's tokens if it is scored, otherwise 1
  const std::size_t vocabulary = logits.size() / static_cast<std::size_t>(rows);
  const std::int64_t told = std::min(rows, tokens);
  tell(*slot, row.first + tokens - told, told, logits.first(static_cast<std::size_t>(told) * vocabulary), listener);
  if (score_ && call.program == &*score_) {
    score(*slot, row, logits, listener);
  }
  if (row.first + tokens < std::ssize(slot->request.prompt)) {
    return false;
  }
  if (slot->request.tokens == 0) {
    release(*slot);
    return false;
  }
  draw(*slot, logits.subspan(static_cast<std::size_t>(told - 1) * vocabulary, vocabulary), listener);
  return true;
}

void Session::tell(const Slot& slot, std::int64_t first, std::int64_t rows, std::span<const float> logits,
                   const Listener& listener) {
  if (listener.computed) {
    listener.computed({.id = slot.request.id, .tokens = slot.tokens, .first = first, .rows = rows, .logits = logits});
  }
}

void Session::score(const Slot& slot, const Fed& row, std::span<const float> logits, const Listener& listener) const {
  const Request& request = slot.request;
  const std::size_t vocabulary = logits.size() / static_cast<std::size_t>(score_->logits.global[0]);
  const std::int64_t prompted = std::ssize(request.prompt);
  const auto tell = [&](std::int64_t at, std::span<const float> of) {
    listener.scored({.id = request.id,
                     .token = request.prompt[static_cast<std::size_t>(at)],
                     .logits = of,
                     .is_last = request.tokens == 0 && at + 1 == prompted});
  };
  if (row.first == 0 && *request.scored_from == 0) {
    tell(0, {});
  }
  for (std::int64_t i = std::max<std::int64_t>(0, *request.scored_from - 1 - row.first); i < std::ssize(row.tokens);
       ++i) {
    if (row.first + i + 1 < prompted) {
      tell(row.first + i + 1, logits.subspan(static_cast<std::size_t>(i) * vocabulary, vocabulary));
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
  if (is_last && slot.is_used) {  // false if the listener has cancelled the request
    release(slot);
  }
}

}  // namespace shardrun::infer
