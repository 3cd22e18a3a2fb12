#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardrun::test {

/// About `bytes` bytes of sentences in a small language. They have enough order that training reduces the loss.
inline std::string sentences(std::size_t bytes) {
  constexpr std::array<std::string_view, 12> words = {"the", "cat", "sat",  "on",  "a",    "mat",
                                                      "and", "saw", "some", "red", "bird", "fly"};
  std::string text;
  std::uint32_t state = 1;
  while (text.size() < bytes) {
    state = state * 1664525U + 1013904223U;
    text += words[(state >> 16U) % words.size()];
    text += (state >> 28U) == 0 ? ".\n" : " ";
  }
  return text;
}

/// A job that trains a small transformer on `corpus.txt` and writes to the folder `run`.
inline constexpr std::string_view text_job =
    "[job]\noutput = run\nthreads = 1\n"
    "[model]\nname = gpt\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 16\n"
    "[data]\ntext = corpus.txt\nbatch = 7\n"
    "[train]\nsteps = 30\nlearning_rate = 1e-2\nclip = 1\nweight_decay = 0.1\neval_every = 10\n";

}  // namespace shardrun::test
