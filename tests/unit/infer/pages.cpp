#include "core/infer/pages.h"

#include <numeric>

#include "tests/support/catch.h"

using namespace shardrun;

namespace {

using Tokens = std::vector<std::int32_t>;

/// Tokens that begin like all others of the same `first`.
Tokens tokens_from(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Takes pages for a prompt, and shares all its whole chunks of four.
infer::Pages::Held read(infer::Pages& pages, const Tokens& prompt) {
  infer::Pages::Held held = pages.take(prompt, std::ssize(prompt)).value();
  for (std::size_t at = static_cast<std::size_t>(held.shared()); at + 4 <= prompt.size(); at += 4) {
    pages.share(held, std::span(prompt).subspan(at, 4));
  }
  return held;
}

}  // namespace

TEST_CASE("pages of chunks that are shared are taken by prompts that begin alike", "[infer]") {
  infer::Pages pages({.pages = 12, .page = 2, .of_sequence = 6}, 4);
  infer::Pages::Held first = read(pages, tokens_from(0, 9));
  CHECK(first.pages() == Tokens{0, 1, 2, 3, 4});
  CHECK(first.shared() == 8);
  infer::Pages::Held longer = pages.take(tokens_from(0, 7), 9).value();
  CHECK(longer.shared() == 4);
  CHECK(longer.pages() == Tokens{0, 1, 5, 6, 7});
  Tokens other = tokens_from(0, 8);
  other[0] = 50;  // all behind it is another prompt
  CHECK(pages.take(other, 8).value().shared() == 0);
}

TEST_CASE("two sequences that read the same chunk at once have its pages once", "[infer]") {
  infer::Pages pages({.pages = 8, .page = 2, .of_sequence = 4}, 4);
  const Tokens prompt = tokens_from(0, 5);
  infer::Pages::Held a = pages.take(prompt, 5).value();
  infer::Pages::Held b = pages.take(prompt, 5).value();
  CHECK(pages.unused() == 2);
  pages.share(a, std::span(prompt).first(4));
  pages.share(b, std::span(prompt).first(4));
  CHECK(pages.unused() == 4);
  CHECK(std::equal(a.pages().begin(), a.pages().begin() + 2, b.pages().begin()));
  CHECK(a.pages()[2] != b.pages()[2]);
  pages.release(a);
  pages.release(b);
  CHECK(pages.unused() == 8);
}

TEST_CASE("chunks that nobody reads are kept until their pages are needed", "[infer]") {
  infer::Pages pages({.pages = 6, .page = 2, .of_sequence = 6}, 4);
  for (const std::int32_t start : {0, 100, 200}) {
    infer::Pages::Held held = read(pages, tokens_from(start, 4));
    pages.release(held);
  }
  CHECK(pages.unused() == 6);
  infer::Pages::Held again = read(pages, tokens_from(0, 4));  // 100 is now the one that was read longest ago
  CHECK(again.shared() == 4);
  pages.release(again);
  infer::Pages::Held longer = pages.take(tokens_from(300, 3), 3).value();
  CHECK(pages.take(tokens_from(0, 4), 4).value().shared() == 4);
  CHECK(pages.take(tokens_from(200, 4), 4).value().shared() == 4);
  CHECK(pages.unused() == 0);
}

TEST_CASE("a sequence that does not fit leaves everything as it was", "[infer]") {
  infer::Pages pages({.pages = 4, .page = 2, .of_sequence = 6}, 4);
  infer::Pages::Held held = read(pages, tokens_from(0, 5));
  pages.release(held);
  CHECK_FALSE(pages.take(tokens_from(0, 9), 9));
  CHECK(pages.unused() == 4);
  CHECK(pages.take(tokens_from(0, 8), 8).value().shared() == 4);
  CHECK(pages.unused() == 0);
}

TEST_CASE("nothing is shared unless a chunk is a multiple of a page", "[infer]") {
  infer::Pages pages({.pages = 4, .page = 3, .of_sequence = 4}, 4);
  infer::Pages::Held held = read(pages, tokens_from(0, 8));
  CHECK(held.shared() == 0);
  pages.release(held);
  CHECK(pages.unused() == 4);
}
